-- The line of a key in its order, cut by number and bytes (one row more shows that there are more); nothing while a blocking dead letter stands before it.
-- $1 sink, $2 partition, $3 key, $4 place, $5 seq, $6 how many, $7 bytes
SELECT
--:parked
FROM (SELECT k.*, sum(octet_length(k.payload)) OVER (ORDER BY k.place, k.seq) - octet_length(k.payload) AS before
      FROM (SELECT * FROM outbox_parked
            WHERE sink = $1 AND partition_id = $2 AND partition_key = $3 AND reason <> 'scheduled' AND (place, seq) > ($4, $5)
            ORDER BY place, seq LIMIT $6::int) k) m
WHERE m.before <= $7
  AND NOT EXISTS (SELECT FROM outbox_dead d WHERE d.sink = $1 AND d.partition_id = $2 AND d.partition_key = $3 AND d.blocks)
ORDER BY m.place, m.seq;
