-- What I own and from where, in one statement: a partition's cursor is in my row if it stands in its partitions, else in
-- outbox_partitions. No row: fenced for good. $1 sink, $2 me
SELECT c.no, c.snapshot::text, coalesce(c.late_snapshot::text, ''), coalesce(c.late_seq, 0), c.published,
       (SELECT token::text FROM outbox_incarnation),
       coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0),
       coalesce(p.partition_id, -1), coalesce(p.epoch, 0),
       CASE WHEN u.part IS NULL THEN p.snapshot::text END,
       coalesce(u.seq, p.seq, 0),
       CASE WHEN u.part IS NULL THEN coalesce(p.late_snapshot::text, '') END,
       CASE WHEN u.part IS NULL THEN coalesce(p.late_seq, 0) END
FROM (SELECT * FROM outbox_cursors WHERE sink = $1 AND relay = $2::text::uuid ORDER BY no DESC LIMIT 1) c
LEFT JOIN outbox_partitions p ON p.sink = $1 AND p.relay = $2::text::uuid
LEFT JOIN LATERAL unnest(c.partitions, c.seqs) u(part, seq) ON u.part = p.partition_id;
