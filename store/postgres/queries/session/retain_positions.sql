-- Removes the broker's positions of messages that are no more: of the next 1,000 after ($1 sink, $2 id); $3 is not used. The last
-- one that was looked at, or nothing where fewer were left.
WITH page AS MATERIALIZED (
    SELECT b.sink, b.id FROM outbox_positions b
    WHERE (b.sink, b.id) > ($1::text, $2::text::uuid) AND current_setting('onward.retains', true) = 'true'
    ORDER BY b.sink, b.id LIMIT 1000),
gone AS (
    DELETE FROM outbox_positions b USING page p WHERE b.sink = p.sink AND b.id = p.id
      AND NOT EXISTS (SELECT FROM outbox_messages m WHERE m.id = p.id)
      AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.id = p.id AND k.sink = p.sink)
      AND NOT EXISTS (SELECT FROM outbox_dead d WHERE d.sink = p.sink AND d.id = p.id)
    RETURNING 1)
SELECT p.sink, p.id::text, $3::int, (SELECT count(*) FROM gone) FROM page p ORDER BY p.sink, p.id OFFSET 999 LIMIT 1;
