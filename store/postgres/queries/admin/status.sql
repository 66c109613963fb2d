-- The outbox at a glance: one row for each sink, or one row without a sink. One statement, because the cursor of a
-- partition moves between two tables. $1 is '': all sinks.
--
-- The backlog of a sink is what its cursors have not passed, in two parts: rows that the snapshot does not see (late,
-- and all newer ones), found by transaction as a read finds them; and rows above seq that the snapshot sees. Each part reads
-- at most 100,000 rows, the second only if the first came to its end. A drained sink costs one probe a partition.
-- Parked and dead ones are counted up to 100,000 of a kind.
WITH
--:cursors
, floor AS MATERIALIZED (SELECT coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS seq)
-- Of each sink: the least xmax of its snapshots, and the older transactions that were open at one and have ended since.
, unseen AS MATERIALIZED (
    SELECT s.sink, s.xmax,
           (SELECT array_agg(DISTINCT x::text)
            FROM (SELECT DISTINCT c.snapshot::text FROM cursors c WHERE c.sink = s.sink) d
            CROSS JOIN LATERAL pg_snapshot_xip(d.snapshot::pg_snapshot) x
            WHERE x < s.xmax AND pg_visible_in_snapshot(x, pg_current_snapshot())) AS ended
    FROM (SELECT sink, (array_agg(pg_snapshot_xmax(snapshot) ORDER BY pg_snapshot_xmax(snapshot)))[1] AS xmax
          FROM cursors GROUP BY sink) s)
, candidates AS MATERIALIZED (
    SELECT u.sink, m.*
    FROM unseen u
    CROSS JOIN LATERAL (
        (SELECT o.partition_id, o.seq, o.txid, o.created_at, o.topic
         FROM unnest(u.ended) e(x)
         CROSS JOIN LATERAL (SELECT * FROM outbox_messages WHERE txid = e.x::xid8 ORDER BY seq LIMIT 100000) o
         LIMIT 100000)
        UNION ALL
        (SELECT o.partition_id, o.seq, o.txid, o.created_at, o.topic
         FROM outbox_messages o WHERE o.txid >= u.xmax
         ORDER BY o.txid, o.seq LIMIT 100000)) m)
, late AS MATERIALIZED (
    SELECT u.sink, coalesce(l.read, 0) AS read, coalesce(l.n, 0) AS n, l.oldest
    FROM unseen u
    LEFT JOIN (SELECT w.sink, count(*) AS read, count(*) FILTER (WHERE w.waits) AS n, min(w.created_at) FILTER (WHERE w.waits) AS oldest
               FROM (SELECT a.sink, a.created_at,
                            NOT (a.seq <= c.seq
                                 AND (a.seq <= (SELECT seq FROM floor)
                                      OR pg_visible_in_snapshot(a.txid, c.snapshot)
                                      OR coalesce(a.seq <= c.late_seq AND pg_visible_in_snapshot(a.txid, c.late_snapshot), false)))
                            AND (s.takes = '' OR a.topic ~ s.takes) AND (s.leaves = '' OR a.topic !~ s.leaves) AS waits
                     FROM candidates a JOIN outbox_sinks s ON s.name = a.sink JOIN cursors c ON c.sink = a.sink AND c.partition_id = a.partition_id) w
               GROUP BY w.sink) l ON l.sink = u.sink)
, fresh AS MATERIALIZED (
    SELECT l.sink, f.n,
           (SELECT min(o.created_at)
            FROM cursors c
            CROSS JOIN LATERAL (SELECT t.created_at
                                FROM (SELECT m.seq, m.created_at, m.topic FROM outbox_messages m
                                      WHERE m.partition_id = c.partition_id AND m.seq > c.seq
                                      ORDER BY m.seq LIMIT CASE WHEN s.takes = '' AND s.leaves = '' THEN 1 ELSE 1000 END) t
                                WHERE (s.takes = '' OR t.topic ~ s.takes) AND (s.leaves = '' OR t.topic !~ s.leaves)
                                ORDER BY t.seq LIMIT 1) o
            WHERE c.sink = l.sink) AS oldest
    FROM late l JOIN outbox_sinks s ON s.name = l.sink
    CROSS JOIN LATERAL (
        SELECT count(*) AS n
        FROM (SELECT FROM cursors c
              CROSS JOIN LATERAL (SELECT m.txid, m.topic FROM outbox_messages m
                                  WHERE m.partition_id = c.partition_id AND m.seq > c.seq
                                  ORDER BY m.seq LIMIT CASE WHEN l.read >= 100000 THEN 0 ELSE 200000 END) o
              WHERE c.sink = l.sink AND pg_visible_in_snapshot(o.txid, c.snapshot)
                AND (s.takes = '' OR o.topic ~ s.takes) AND (s.leaves = '' OR o.topic !~ s.leaves)
              LIMIT 100000) t) f)
-- A parked row with due_at is the head of its key; the others wait behind one.
, heads AS MATERIALIZED (
    SELECT s.name AS sink, k.reason, k.partition_id, k.partition_key, k.waits
    FROM outbox_sinks s
    CROSS JOIN LATERAL (SELECT k.reason, k.partition_id, k.partition_key,
                               k.reason = 'scheduled' AND k.due_at > clock_timestamp() AS waits
                        FROM outbox_parked k WHERE k.sink = s.name AND k.due_at IS NOT NULL
                        ORDER BY k.due_at LIMIT 100000) k)
, parked AS MATERIALIZED (
    SELECT s.name AS sink, h.n AS heads, h.retry, h.scheduled, p.n - h.n + h.behind AS behind, p.n AS all_
    FROM outbox_sinks s
    CROSS JOIN LATERAL (SELECT count(*) AS n, count(*) FILTER (WHERE reason = 'retry') AS retry,
                               count(*) FILTER (WHERE reason = 'scheduled') AS scheduled,
                               count(*) FILTER (WHERE reason = 'behind') AS behind
                        FROM heads WHERE heads.sink = s.name) h
    CROSS JOIN LATERAL (SELECT count(*) AS n
                        FROM (SELECT FROM outbox_parked k WHERE k.sink = s.name LIMIT h.n + 100000) k) p)
, dead AS MATERIALIZED (
    SELECT s.name AS sink, (SELECT count(*) FROM (SELECT FROM outbox_dead d WHERE d.sink = s.name LIMIT 100000) d) AS n
    FROM outbox_sinks s)
SELECT version(),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'schema'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'partitions'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'lineage'), ''),
       clock_timestamp(),
       (SELECT count(*) FROM outbox_relays WHERE leased_until > clock_timestamp()),
       s.name,
       least(coalesce(late.n + fresh.n, 0), 100000),
       coalesce(late.read >= 100000 OR late.n + fresh.n >= 100000, false),
       least(late.oldest, fresh.oldest),
       coalesce(parked.retry, 0), coalesce(parked.scheduled, 0), coalesce(parked.behind, 0),
       (SELECT count(*) FROM (
            SELECT h.partition_id, h.partition_key FROM heads h
            WHERE h.sink = s.name AND h.partition_key <> '' AND NOT h.waits
            UNION
            SELECT b.partition_id, b.partition_key
            FROM (SELECT d.partition_id, d.partition_key FROM outbox_dead d WHERE d.sink = s.name AND d.blocks LIMIT 100000) b) k),
       coalesce(dead.n, 0),
       coalesce(parked.heads >= 100000 OR parked.all_ >= parked.heads + 100000 OR dead.n >= 100000, false),
       coalesce(s.published + (SELECT coalesce(sum(c.published), 0) FROM outbox_cursors c WHERE c.sink = s.name), 0)::bigint,
       (SELECT count(*) FROM cursors c WHERE c.sink = s.name AND c.relay IS NOT NULL),
       (SELECT count(*) FROM cursors c WHERE c.sink = s.name AND c.relay IS NULL),
       -- Relays that gave everything back have left no cursor row: what they freed has the time of their last write.
       coalesce((SELECT max(c.settled_at) FROM outbox_cursors c WHERE c.sink = s.name),
                (SELECT max(c.freed_at) FROM cursors c WHERE c.sink = s.name)),
       coalesce(s.topics, '{}'), coalesce(s.exclude, '{}'), s.created_at, s.seen_at,
       (SELECT coalesce(json_agg(json_build_object('relay', r.name, 'settings', coalesce(r.settings ->> s.name, '')) ORDER BY r.name), '[]')
        FROM outbox_relays r WHERE s.name = ANY (r.sinks) AND r.leased_until > clock_timestamp())
FROM (SELECT 1) one
LEFT JOIN outbox_sinks s ON true
LEFT JOIN late ON late.sink = s.name
LEFT JOIN fresh ON fresh.sink = s.name
LEFT JOIN parked ON parked.sink = s.name
LEFT JOIN dead ON dead.sink = s.name
ORDER BY s.name;
