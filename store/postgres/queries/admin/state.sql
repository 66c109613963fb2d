-- Where the message m (id, topic, partition_id, seq, txid) stands in the sink $1 ('': in each that takes it). A file that needs it says so in
-- a line that reads "--:state" and stands where a table may stand, after m.
--
-- Published: seq is passed, and the snapshot of the cursor (in a late pass up to late_seq: the one of the pass) sees the
-- transaction. What is parked or dead was passed too, so those come first. The cursor is looked up as in cursors.sql, but
-- by index: a list asks for each of up to 100,000 rows.
LATERAL (
    SELECT s.name AS sink, k.reason, nullif(k.due_at, 'infinity') AS due_at,
           coalesce(k.attempts, d.attempts, 0)         AS attempts,
           coalesce(k.last_code, d.code, '')           AS last_code,
           coalesce(k.last_error, d.error, '')         AS last_error,
           CASE WHEN k.id IS NOT NULL THEN 'parked'
                WHEN d.id IS NOT NULL THEN 'dead'
                WHEN EXISTS (SELECT FROM outbox_audit a
                             WHERE a.message_id = m.id AND a.sink = s.name AND a.action = 'discard') THEN 'discarded'
                WHEN m.seq <= coalesce(h.seq, p.seq)
                 AND (m.seq <= coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0)
                      OR pg_visible_in_snapshot(m.txid, coalesce(h.snapshot, p.snapshot))
                      OR CASE WHEN h.seq IS NULL
                              THEN m.seq <= p.late_seq AND pg_visible_in_snapshot(m.txid, p.late_snapshot)
                              ELSE m.seq <= h.late_seq AND pg_visible_in_snapshot(m.txid, h.late_snapshot) END) THEN 'published'
                ELSE 'pending' END AS state
    FROM outbox_sinks s
    JOIN outbox_partitions p ON p.sink = s.name AND p.partition_id = m.partition_id
    LEFT JOIN LATERAL (SELECT c.snapshot, c.late_snapshot, c.late_seq,
                              c.seqs[array_position(c.partitions, p.partition_id)] AS seq
                       FROM outbox_cursors c
                       WHERE c.sink = p.sink AND c.relay = p.relay AND p.partition_id = ANY (c.partitions)) h ON true
    LEFT JOIN outbox_parked k ON k.sink = s.name AND k.id = m.id AND k.seq = m.seq
    LEFT JOIN outbox_dead d ON d.sink = s.name AND d.id = m.id AND d.seq = m.seq
    WHERE ($1::text = '' OR s.name = $1)
      AND (k.id IS NOT NULL OR d.id IS NOT NULL
           OR (m.topic IS NULL OR (s.takes = '' OR m.topic ~ s.takes) AND (s.leaves = '' OR m.topic !~ s.leaves))
              AND NOT (m.seq <= s.start_seq AND pg_visible_in_snapshot(m.txid, s.start_snapshot)))
) st
