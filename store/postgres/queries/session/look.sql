-- What is mine, what my fair share is (null: my lease is over, neither claim nor give back), how many relays live,
-- when the earliest foreign lease ends, in microseconds, and how many partitions are free or of a relay that has not renewed
-- its lease since I registered. $1 sink, $2 me
WITH live AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY hashtextextended($1 || '/' || id::text, 0), id) - 1 AS rank, count(*) OVER () AS n
    FROM outbox_relays
    WHERE $1 = ANY (sinks) AND NOT draining AND leased_until > clock_timestamp())
SELECT (SELECT (t.total / n + (rank < t.total % n)::int)::int FROM live WHERE id = $2::text::uuid),
       t.free::int,
       coalesce(t.mine, '{}'),
       (SELECT count(*) FROM live)::int,
       (SELECT (extract(epoch FROM min(leased_until) - clock_timestamp()) * 1000000)::bigint
        FROM outbox_relays WHERE id <> $2::text::uuid),
       t.unattended::int
FROM (SELECT count(*) AS total, count(*) FILTER (WHERE relay IS NULL) AS free,
             array_agg(partition_id) FILTER (WHERE relay = $2::text::uuid) AS mine,
             count(*) FILTER (WHERE relay IS NULL OR relay <> ALL (array(
                 SELECT o.id FROM outbox_relays o, outbox_relays me
                 WHERE me.id = $2::text::uuid AND (o.id = me.id OR o.heartbeat_at > me.started_at)))) AS unattended
      FROM outbox_partitions WHERE sink = $1) t;
