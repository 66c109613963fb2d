-- Claim free partitions, in random order. The relay's own row is locked, so that no take-over of me runs meanwhile: it
-- would free what I hold now and not what I am about to get. The cursor row must have the number that I know: a claim that nobody
-- waits for any more is carried out before I load what I own, or not at all. $1 sink, $2 me, $3 how many, $4 token, $5 no
WITH me AS MATERIALIZED (
    SELECT r.id FROM outbox_relays r, outbox_cursors c, outbox_incarnation t
    WHERE r.id = $2::text::uuid AND t.token = $4::text::uuid AND NOT r.draining AND r.leased_until > clock_timestamp()
      AND c.sink = $1 AND c.relay = $2::text::uuid AND c.no = $5::bigint
    FOR KEY SHARE OF r, c),
pick AS (
    SELECT p.partition_id FROM me, outbox_partitions p
    WHERE p.sink = $1 AND p.relay IS NULL
    ORDER BY random() LIMIT $3::int
    FOR UPDATE OF p SKIP LOCKED)
UPDATE outbox_partitions p SET relay = $2::text::uuid, epoch = epoch + 1
FROM pick
WHERE p.sink = $1 AND p.partition_id = pick.partition_id
RETURNING p.partition_id, p.epoch, p.snapshot::text, p.seq, coalesce(p.late_snapshot::text, ''), coalesce(p.late_seq, 0);
