-- Parked messages that are due, the earliest first: by their own time, or because the pause that they waited for has ended; with the microseconds since. A
-- scheduled one joins its key's line if there is one: it is not due then, and marked. The first row says when to ask again,
-- in microseconds, what is paused, and whether a pause that has ended holds nothing any more.
-- $1 sink, $2 partitions, $3 how many
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at),
pauses AS MATERIALIZED (SELECT p.*, p.expires_at <= (SELECT at FROM now) AS ended FROM outbox_pauses p WHERE p.sink = $1),
due AS MATERIALIZED (
    SELECT k.due_at AS since, k.* FROM outbox_parked k
    WHERE k.sink = $1 AND k.due_at <= (SELECT at FROM now) AND k.partition_id = ANY ($2::int[])
    ORDER BY k.due_at LIMIT $3::int),
released AS MATERIALIZED (
    SELECT p.expires_at AS since, k.*
    FROM pauses p
    CROSS JOIN LATERAL (SELECT o.* FROM outbox_parked o
                        WHERE o.pause = p.id AND o.due_at = 'infinity' AND o.partition_id = ANY ($2::int[])
                        LIMIT $3::int) k
    WHERE p.ended
    LIMIT $3::int),
next AS MATERIALIZED (
    SELECT k.due_at FROM outbox_parked k
    WHERE k.sink = $1 AND k.due_at > (SELECT at FROM now) AND k.due_at < 'infinity' AND k.partition_id = ANY ($2::int[])
    ORDER BY k.due_at LIMIT 1)
SELECT (SELECT coalesce((extract(epoch FROM least((SELECT due_at FROM next), (SELECT min(expires_at) FROM pauses WHERE ended IS NOT TRUE)) - at)
                         * 1000000)::bigint, -1) FROM now),
       (SELECT json_agg(json_build_object('id', id, 'sink', sink, 'kind', kind, 'name', name, 'reason', reason, 'actor', actor,
                                          'created_at', (to_json(created_at AT TIME ZONE 'UTC') #>> '{}') || 'Z',
                         'expires_at', (to_json(expires_at AT TIME ZONE 'UTC') #>> '{}') || 'Z') ORDER BY kind, name)
        FROM pauses WHERE ended IS NOT TRUE)::text,
       EXISTS (SELECT FROM pauses p
               WHERE p.ended AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.pause = p.id AND k.due_at = 'infinity')),
       NULL::boolean, NULL::bigint,
--:norecord
       , NULL::bigint, NULL::text, NULL::int, NULL::int
UNION ALL
(SELECT NULL, NULL, NULL, m.reason = 'scheduled' AND m.partition_key <> '' AND (
--:waits
       ), (extract(epoch FROM (SELECT at FROM now) - m.since) * 1000000)::bigint,
--:parked
 FROM (TABLE due UNION ALL TABLE released) m ORDER BY m.since, m.place, m.seq LIMIT $3::int);
