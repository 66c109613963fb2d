-- Notes how far the log goes now, if the last note is older than $2 microseconds; and forgets the notes below the newest one
-- that is older than the retention, $1 microseconds. A clock that went back leaves notes in its future: newer ones stand above.
WITH may AS MATERIALIZED (
    SELECT true AS may WHERE current_setting('onward.retains', true) = 'true'),
due AS MATERIALIZED (
    SELECT seq, at FROM outbox_marks WHERE at <= clock_timestamp() - $1::bigint * interval '1 microsecond' ORDER BY seq DESC, at DESC LIMIT 1),
gone AS (
    DELETE FROM outbox_marks k USING may, due WHERE (k.seq, k.at) < (due.seq, due.at)),
told AS (
    UPDATE outbox_meta SET value = $1::bigint::text FROM may WHERE name = 'retention' AND value <> $1::bigint::text)
INSERT INTO outbox_marks (at, seq)
SELECT clock_timestamp(), (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_messages_seq_seq) FROM may
WHERE $1::bigint > 0 AND NOT EXISTS (
    SELECT FROM outbox_marks WHERE at > clock_timestamp() - $2::bigint * interval '1 microsecond' AND at <= clock_timestamp())
ON CONFLICT DO NOTHING;
