-- Wait for whoever is at the front of these keys' lines: a person's discard or requeue deletes first and promotes in a
-- later statement, we write first and promote in a later statement, so one of the two sees the other. In key order, so
-- that two of us do not wait for each other. $1 sink, $2 partitions, $3 keys
SELECT 1
FROM (SELECT DISTINCT * FROM unnest($2::int[], $3::text[]) v(part, key) ORDER BY 1, 2) v
LEFT JOIN LATERAL (
    SELECT 1 FROM outbox_dead d WHERE d.sink = $1 AND d.partition_id = v.part AND d.partition_key = v.key AND d.blocks
    LIMIT 1 FOR SHARE) dead ON true
LEFT JOIN LATERAL (
    SELECT 1 FROM outbox_parked k WHERE k.sink = $1 AND k.partition_id = v.part AND k.partition_key = v.key AND k.reason <> 'scheduled'
    ORDER BY k.place, k.seq LIMIT 1 FOR SHARE) front ON true;
