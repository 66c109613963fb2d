-- Removes failed attempts of messages that are no more: of the next 1,000 after ($1 sink, $2 id, $3 attempt). The last one that
-- was looked at, or nothing where fewer were left.
WITH page AS MATERIALIZED (
    SELECT a.sink, a.id, a.attempt FROM outbox_attempts a
    WHERE (a.sink, a.id, a.attempt) > ($1::text, $2::text::uuid, $3::int) AND current_setting('onward.retains', true) = 'true'
    ORDER BY a.sink, a.id, a.attempt LIMIT 1000),
gone AS (
    DELETE FROM outbox_attempts a USING page p WHERE a.sink = p.sink AND a.id = p.id AND a.attempt = p.attempt
      AND NOT EXISTS (SELECT FROM outbox_messages m WHERE m.id = p.id)
      AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.id = p.id AND k.sink = p.sink)
      AND NOT EXISTS (SELECT FROM outbox_dead d WHERE d.sink = p.sink AND d.id = p.id)
    RETURNING 1)
SELECT p.sink, p.id::text, p.attempt, (SELECT count(*) FROM gone) FROM page p ORDER BY p.sink, p.id, p.attempt OFFSET 999 LIMIT 1;
