-- Discards dead letters that are older than $3 microseconds, after ($1 sink, $2 id). Where it ended (empty: at the end), and how
-- many there were. No row: this relay is not the one, or may not now.
SELECT coalesce(e.last_sink, ''), coalesce(e.last_id::text, ''), e.discarded
FROM (SELECT $3::bigint * interval '1 microsecond' AS age WHERE current_setting('onward.retains', true) = 'true') may
CROSS JOIN LATERAL outbox_expire(may.age, $1::text, $2::text::uuid) e;
