-- Give my cursor row the next number, before I load what I own: a settle that nobody waits for any more, and that is still on its
-- way, then finds its row replaced. Where it comes first it has replaced the row itself, and there is none here. $1 sink, $2 me
WITH old AS (
    DELETE FROM outbox_cursors WHERE sink = $1 AND relay = $2::text::uuid RETURNING *)
INSERT INTO outbox_cursors (sink, relay, no, snapshot, late_snapshot, late_seq, partitions, seqs, published, settled_at)
SELECT sink, relay, no + 1, snapshot, late_snapshot, late_seq, partitions, seqs, published, settled_at FROM old;
