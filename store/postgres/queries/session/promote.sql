-- Make the front of each of these keys' lines its head: the only row with a due time, or none while a blocking dead letter
-- stands before it. Scheduled rows are not in a line. Only keys of partitions that the relay holds.
-- $1 sink, $2 partitions, $3 keys, $4 relay
WITH line AS MATERIALIZED (
    SELECT v.part, v.key, f.place, f.seq,
           EXISTS (SELECT FROM outbox_dead d WHERE d.sink = $1 AND d.partition_id = v.part AND d.partition_key = v.key AND d.blocks) AS blocked
    FROM (SELECT DISTINCT * FROM unnest($2::int[], $3::text[]) v(part, key)) v
    JOIN outbox_partitions p ON p.sink = $1 AND p.partition_id = v.part AND p.relay = $4::text::uuid
    CROSS JOIN LATERAL (
        SELECT k.place, k.seq FROM outbox_parked k
        WHERE k.sink = $1 AND k.partition_id = v.part AND k.partition_key = v.key AND k.reason <> 'scheduled'
        ORDER BY k.place, k.seq LIMIT 1) f),
changed AS MATERIALIZED (
    SELECT line.part, line.key, t.place, t.seq, NOT line.blocked AND t.place = line.place AND t.seq = line.seq AS head
    FROM line CROSS JOIN LATERAL (
        SELECT line.place, line.seq
        UNION
        SELECT k.place, k.seq FROM outbox_parked k
        WHERE k.sink = $1 AND k.partition_id = line.part AND k.partition_key = line.key AND k.due_at IS NOT NULL
          AND k.reason <> 'scheduled') t)
UPDATE outbox_parked k SET due_at = CASE WHEN c.head THEN clock_timestamp() END
FROM changed c
WHERE k.sink = $1 AND k.partition_id = c.part AND k.partition_key = c.key AND k.place = c.place AND k.seq = c.seq
  AND (k.due_at IS NULL) = c.head;
