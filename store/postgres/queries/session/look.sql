-- What is mine, what my fair share is (null: my lease is over, neither claim nor give back), how many relays live, and
-- when the earliest foreign lease ends, in microseconds. $1 sink, $2 me
WITH live AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY hashtextextended($1 || '/' || id::text, 0), id) - 1 AS rank, count(*) OVER () AS n
    FROM outbox_relays
    WHERE $1 = ANY (sinks) AND NOT draining AND leased_until > clock_timestamp())
SELECT (SELECT (t.total / n + (rank < t.total % n)::int)::int FROM live WHERE id = $2::text::uuid),
       t.free::int,
       coalesce(t.mine, '{}'),
       (SELECT count(*) FROM live)::int,
       (SELECT (extract(epoch FROM min(leased_until) - clock_timestamp()) * 1000000)::bigint
        FROM outbox_relays WHERE id <> $2::text::uuid)
FROM (SELECT count(*) AS total, count(*) FILTER (WHERE relay IS NULL) AS free,
             array_agg(partition_id) FILTER (WHERE relay = $2::text::uuid) AS mine
      FROM outbox_partitions WHERE sink = $1) t;
