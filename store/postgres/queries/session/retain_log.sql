-- Removes messages that every sink has passed: of each partition $1 the next $3 rows after $2, as far as they were written
-- longer ago than $4 microseconds. One row for each partition: how many rows were looked at, the number of the last one, and how
-- many were removed. No row: this relay is not the one, or may not now.
--
-- Every registered sink counts, and there is at least one, by the durable cursor of the partition: in its relay's row of
-- outbox_cursors if it stands there, else in outbox_partitions; all of it in this one statement, because a settle moves it from one to
-- the other. Passed is what the cursor's snapshot sees, not only what lies below its number: a transaction that commits late has its
-- rows there, too. A cursor from another lineage (a number or snapshot that this server has not reached) has passed nothing.
WITH now AS MATERIALIZED (
    SELECT pg_snapshot_xmax(pg_current_snapshot()) AS xmax, (SELECT last_value FROM outbox_messages_seq_seq) AS top,
           coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS floor,
           CASE WHEN $4::bigint = 0 THEN 9223372036854775807
                ELSE coalesce((SELECT max(seq) FROM outbox_marks WHERE at <= clock_timestamp() - $4::bigint * interval '1 microsecond'), 0) END AS old
    WHERE current_setting('onward.retains', true) = 'true'),
p AS MATERIALIZED (
    SELECT p.part, p.d FROM now, unnest($1::int[], $2::bigint[]) p(part, d)),
held AS MATERIALIZED (
    SELECT c.sink, c.relay, u.part, u.seq, c.snapshot, c.late_snapshot, c.late_seq
    FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) u(part, seq)),
cursors AS MATERIALIZED (
    SELECT p.part,
           CASE WHEN h.part IS NULL THEN q.seq           ELSE h.seq           END AS seq,
           CASE WHEN h.part IS NULL THEN q.snapshot      ELSE h.snapshot      END AS snapshot,
           CASE WHEN h.part IS NULL THEN q.late_seq      ELSE h.late_seq      END AS late_seq,
           CASE WHEN h.part IS NULL THEN q.late_snapshot ELSE h.late_snapshot END AS late_snapshot
    FROM p CROSS JOIN outbox_sinks s
    LEFT JOIN outbox_partitions q ON q.sink = s.name AND q.partition_id = p.part
    LEFT JOIN held h ON h.sink = q.sink AND h.relay = q.relay AND h.part = q.partition_id),
bounds AS MATERIALIZED (
    SELECT c.part, CASE WHEN bool_and(coalesce(c.seq <= now.top AND pg_snapshot_xmax(c.snapshot) <= now.xmax, false))
                        THEN least(min(c.seq), now.old) ELSE -1 END AS upto
    FROM cursors c, now GROUP BY c.part, now.old),
page AS MATERIALIZED (
    SELECT p.part, m.at, m.seq, m.txid
    FROM p JOIN bounds b ON b.part = p.part
    CROSS JOIN LATERAL (SELECT o.ctid AS at, o.seq, o.txid FROM outbox_messages o
                        WHERE o.partition_id = p.part AND o.seq > p.d AND o.seq <= b.upto ORDER BY o.seq LIMIT $3::int) m),
passed AS MATERIALIZED (
    SELECT m.at
    FROM page m JOIN cursors c ON c.part = m.part, now
    GROUP BY m.at
    HAVING bool_and(m.seq <= now.floor OR pg_visible_in_snapshot(m.txid, c.snapshot)
                    OR coalesce(m.seq <= c.late_seq AND pg_visible_in_snapshot(m.txid, c.late_snapshot), false))),
gone AS (
    DELETE FROM outbox_messages WHERE ctid = ANY (ARRAY(SELECT at FROM passed)) RETURNING partition_id)
SELECT p.part, (SELECT count(*) FROM page m WHERE m.part = p.part), coalesce((SELECT max(m.seq) FROM page m WHERE m.part = p.part), p.d),
       (SELECT count(*) FROM gone g WHERE g.partition_id = p.part)
FROM p;
