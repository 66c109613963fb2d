-- Keys of the sink $1 with something parked, or with a dead letter that blocks, in order, from after ($2, $3) on; at most $4
-- that are found. $5: only those that wait for more than the time of scheduled messages.
--
-- Each branch goes from key to key along its index, past whatever number of rows a key has, and stops when it has enough.
WITH RECURSIVE
line(part, key) AS (
    (SELECT k.partition_id, k.partition_key FROM outbox_parked k
     WHERE k.sink = $1 AND k.reason <> 'scheduled' AND (k.partition_id, k.partition_key) > ($2::int, $3::text)
     ORDER BY k.partition_id, k.partition_key LIMIT 1)
    UNION ALL
    SELECT n.partition_id, n.partition_key
    FROM line l
    CROSS JOIN LATERAL (SELECT k.partition_id, k.partition_key FROM outbox_parked k
                        WHERE k.sink = $1 AND k.reason <> 'scheduled' AND (k.partition_id, k.partition_key) > (l.part, l.key)
                        ORDER BY k.partition_id, k.partition_key LIMIT 1) n),
timed(part, key) AS (
    (SELECT k.partition_id, k.partition_key FROM outbox_parked k
     WHERE NOT $5::boolean AND k.sink = $1 AND k.due_at IS NOT NULL AND (k.partition_id, k.partition_key) > ($2::int, $3::text)
     ORDER BY k.partition_id, k.partition_key LIMIT 1)
    UNION ALL
    SELECT n.partition_id, n.partition_key
    FROM timed l
    CROSS JOIN LATERAL (SELECT k.partition_id, k.partition_key FROM outbox_parked k
                        WHERE k.sink = $1 AND k.due_at IS NOT NULL AND (k.partition_id, k.partition_key) > (l.part, l.key)
                        ORDER BY k.partition_id, k.partition_key LIMIT 1) n),
dead(part, key) AS (
    (SELECT d.partition_id, d.partition_key FROM outbox_dead d
     WHERE d.sink = $1 AND d.blocks AND (d.partition_id, d.partition_key) > ($2::int, $3::text)
     ORDER BY d.partition_id, d.partition_key LIMIT 1)
    UNION ALL
    SELECT n.partition_id, n.partition_key
    FROM dead l
    CROSS JOIN LATERAL (SELECT d.partition_id, d.partition_key FROM outbox_dead d
                        WHERE d.sink = $1 AND d.blocks AND (d.partition_id, d.partition_key) > (l.part, l.key)
                        ORDER BY d.partition_id, d.partition_key LIMIT 1) n)
SELECT part, key
FROM ((SELECT part, key FROM line WHERE key <> '' LIMIT $4::int)
      UNION (SELECT part, key FROM timed WHERE key <> '' LIMIT $4::int)
      UNION (SELECT part, key FROM dead LIMIT $4::int)) k
ORDER BY part, key
LIMIT $4::int;
