-- Of each sink: what is mine, what my fair share is (null: my lease is over, neither claim nor give back), how many relays live,
-- when the earliest foreign lease ends, in microseconds, how many partitions are free or of a relay that has not renewed
-- its lease since I registered, whether there are pauses, and when the first parked message that waits for a time is due, in
-- microseconds. $1 sinks, $2 me
WITH live AS MATERIALIZED (
    SELECT s.sink, r.id,
           row_number() OVER (PARTITION BY s.sink ORDER BY hashtextextended(s.sink || '/' || r.id::text, 0), r.id) - 1 AS rank,
           count(*) OVER (PARTITION BY s.sink) AS n
    FROM unnest($1::text[]) s (sink) JOIN outbox_relays r ON s.sink = ANY (r.sinks)
    WHERE NOT r.draining AND r.leased_until > clock_timestamp())
SELECT s.sink,
       (SELECT (t.total / n + (rank < t.total % n)::int)::int FROM live WHERE live.sink = s.sink AND live.id = $2::text::uuid),
       t.free::int,
       coalesce(t.mine, '{}'),
       (SELECT count(*) FROM live WHERE live.sink = s.sink)::int,
       (SELECT (extract(epoch FROM min(leased_until) - clock_timestamp()) * 1000000)::bigint
        FROM outbox_relays WHERE id <> $2::text::uuid),
       t.unattended::int,
       EXISTS (SELECT FROM outbox_pauses p WHERE p.sink = s.sink),
       (SELECT (extract(epoch FROM k.due_at - clock_timestamp()) * 1000000)::bigint
        FROM outbox_parked k WHERE k.sink = s.sink AND k.due_at < 'infinity' ORDER BY k.due_at LIMIT 1)
FROM unnest($1::text[]) s (sink)
CROSS JOIN LATERAL (
    SELECT count(*) AS total, count(*) FILTER (WHERE p.relay IS NULL) AS free,
           array_agg(p.partition_id) FILTER (WHERE p.relay = $2::text::uuid) AS mine,
           count(*) FILTER (WHERE p.relay IS NULL OR p.relay <> ALL (array(
               SELECT o.id FROM outbox_relays o, outbox_relays me
               WHERE me.id = $2::text::uuid AND (o.id = me.id OR o.heartbeat_at > me.started_at)))) AS unattended
    FROM outbox_partitions p WHERE p.sink = s.sink) t;
