-- What I own and from where, in one statement: a partition's cursor is in my row if it stands in its partitions, else in
-- outbox_partitions. No row: fenced for good. $1 sink, $2 me
--
-- The first row is mine, the others are the partitions, those in my row first. A snapshot that a thousand transactions were open
-- at is large: it comes once, with the first partition that has it. A full join is never a loop within a loop, whatever the
-- planner takes the arrays for: with 16,384 partitions that would take minutes.
WITH c AS MATERIALIZED (
    SELECT * FROM outbox_cursors WHERE sink = $1 AND relay = $2::text::uuid ORDER BY no DESC LIMIT 1),
u AS MATERIALIZED (
    SELECT u.part, u.seq FROM c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) u(part, seq)),
p AS MATERIALIZED (
    SELECT p.* FROM c JOIN outbox_partitions p ON p.sink = $1 AND p.relay = $2::text::uuid),
mine AS MATERIALIZED (
    SELECT p.partition_id, p.epoch, coalesce(u.seq, p.seq) AS seq, u.part IS NOT NULL AS member,
           CASE WHEN u.part IS NULL THEN p.snapshot::text END AS snapshot,
           CASE WHEN u.part IS NULL THEN coalesce(p.late_snapshot::text, '') END AS late,
           CASE WHEN u.part IS NULL THEN coalesce(p.late_seq, 0) END AS late_seq
    FROM p FULL JOIN u ON u.part = p.partition_id
    WHERE coalesce(p.partition_id, -1) >= 0),
listed AS (
    SELECT row_number() OVER w AS n, *,
           (snapshot, late, late_seq) IS DISTINCT FROM (lag(snapshot) OVER w, lag(late) OVER w, lag(late_seq) OVER w) AS other
    FROM mine
    WINDOW w AS (ORDER BY snapshot NULLS FIRST, late, late_seq, partition_id))
SELECT 0 AS n, c.no, c.published, (SELECT token::text FROM outbox_incarnation) AS token,
       coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS floor,
       coalesce((SELECT value FROM outbox_meta WHERE name = 'lineage'), '') AS lineage,
       -1 AS partition_id, 0 AS epoch, 0 AS seq, false AS member,
       c.snapshot::text AS snapshot, coalesce(c.late_snapshot::text, '') AS late, coalesce(c.late_seq, 0) AS late_seq
FROM c
UNION ALL
SELECT n, 0, 0, NULL, 0, '', partition_id, epoch, seq, member,
       CASE WHEN other THEN snapshot END, CASE WHEN other THEN late END, late_seq
FROM listed
ORDER BY n;
