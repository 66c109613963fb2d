-- Free what a relay holds, with the cursors that its rows have. Deleting the rows fences it: its next settle finds
-- nothing. The cursors are read by the delete itself: one that was read before may be replaced meanwhile.
WITH ended AS (
    DELETE FROM outbox_cursors
    WHERE (sink, relay) IN (SELECT s, r.id FROM outbox_relays r, unnest(r.sinks) s WHERE r.id = $1::text::uuid)
    RETURNING *),
counted AS (
    UPDATE outbox_sinks s SET published = s.published + e.published FROM ended e WHERE s.name = e.sink RETURNING 1),
--:progress
, held AS MATERIALIZED (
    SELECT e.sink, u.part, u.seq FROM ended e, unnest(e.partitions, e.seqs) u(part, seq)),
p AS MATERIALIZED (
    SELECT p.sink, p.partition_id FROM outbox_partitions p WHERE p.relay = $1::text::uuid),
k AS MATERIALIZED ( -- a full join is never a loop within a loop, as in reload.sql
    SELECT p.sink, p.partition_id, h.part IS NOT NULL AS here, h.seq
    FROM p FULL JOIN held h ON h.sink = p.sink AND h.part = p.partition_id
    WHERE coalesce(p.partition_id, -1) >= 0)
UPDATE outbox_partitions p SET relay = NULL, freed_at = clock_timestamp(),
    snapshot = CASE WHEN here THEN e.snapshot ELSE p.snapshot END, seq = CASE WHEN here THEN k.seq ELSE p.seq END,
    late_snapshot = CASE WHEN here THEN e.late_snapshot ELSE p.late_snapshot END,
    late_seq = CASE WHEN here THEN e.late_seq ELSE p.late_seq END
FROM k JOIN ended e ON e.sink = k.sink
WHERE p.sink = k.sink AND p.partition_id = k.partition_id AND p.relay = $1::text::uuid;
