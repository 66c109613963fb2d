-- Parked messages that are due, the earliest first, with the microseconds since, and in the first row when the next one will be, in microseconds. A scheduled
-- one joins its key's line if there is one: it is not due then, and marked.
-- $1 sink, $2 partitions, $3 how many
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at),
due AS MATERIALIZED (
    SELECT k.* FROM outbox_parked k
    WHERE k.sink = $1 AND k.due_at <= (SELECT at FROM now) AND k.partition_id = ANY ($2::int[])
    ORDER BY k.due_at LIMIT $3::int),
next AS MATERIALIZED (
    SELECT k.due_at FROM outbox_parked k
    WHERE k.sink = $1 AND k.due_at > (SELECT at FROM now) AND k.partition_id = ANY ($2::int[])
    ORDER BY k.due_at LIMIT 1)
SELECT (SELECT coalesce((extract(epoch FROM (SELECT due_at FROM next) - at) * 1000000)::bigint, -1) FROM now), NULL::boolean, NULL::bigint,
--:norecord
       , NULL::bigint, NULL::text, NULL::int, NULL::int
UNION ALL
(SELECT NULL, m.reason = 'scheduled' AND m.partition_key <> '' AND (
--:waits
       ), (extract(epoch FROM (SELECT at FROM now) - m.due_at) * 1000000)::bigint,
--:parked
 FROM due m ORDER BY m.due_at, m.place, m.seq);
