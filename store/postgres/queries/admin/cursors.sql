-- The cursor of every partition of the sink $1 ('': of all sinks). It stands in its relay's row of outbox_cursors if that
-- row lists the partition, else in outbox_partitions. Whoever asks must ask for both in one statement: a settle moves
-- a partition from one to the other. A file that needs it says so in a line that reads "--:cursors".
cursors AS MATERIALIZED (
    SELECT p.sink, p.partition_id, p.relay, p.epoch, p.freed_at,
           CASE WHEN h.part IS NULL THEN p.snapshot      ELSE h.snapshot      END AS snapshot,
           CASE WHEN h.part IS NULL THEN p.seq           ELSE h.seq           END AS seq,
           CASE WHEN h.part IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS late_snapshot,
           CASE WHEN h.part IS NULL THEN p.late_seq      ELSE h.late_seq      END AS late_seq
    FROM outbox_partitions p
    LEFT JOIN (SELECT c.sink, c.relay, c.snapshot, c.late_snapshot, c.late_seq, u.part, u.seq
               FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) AS u(part, seq)) h
           ON h.sink = p.sink AND h.relay = p.relay AND h.part = p.partition_id
    WHERE CASE WHEN $1::text = '' THEN true ELSE p.sink = $1 END -- an OR looks like few rows, and few are compared with each
)
