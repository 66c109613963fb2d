-- The oldest transaction that may have a pending message for the sink $1, so that a list of what is pending can end there:
-- of what the snapshots do not see, and of what they see above seq, where 1,000 rows a partition are looked at. If there is
-- more of the latter, or no sink yet: 0, the beginning. If nothing is pending: the end of all transactions.
WITH
--:cursors
, above AS (
    SELECT count(*) AS n, (array_agg(t.txid ORDER BY t.txid))[1] AS oldest
    FROM cursors c
    CROSS JOIN LATERAL (SELECT m.txid FROM outbox_messages m
                        WHERE m.partition_id = c.partition_id AND m.seq > c.seq
                        ORDER BY m.seq LIMIT 1000) t
    GROUP BY c.sink, c.partition_id)
, unseen AS (
    SELECT x AS txid
    FROM (SELECT DISTINCT snapshot::text FROM cursors) d
    CROSS JOIN LATERAL pg_snapshot_xip(d.snapshot::pg_snapshot) x
    WHERE pg_visible_in_snapshot(x, pg_current_snapshot()) AND EXISTS (SELECT FROM outbox_messages m WHERE m.txid = x)
    UNION ALL
    (SELECT m.txid FROM outbox_messages m
     WHERE m.txid < pg_snapshot_xmax(pg_current_snapshot()) AND m.txid >= (SELECT (array_agg(pg_snapshot_xmax(snapshot) ORDER BY pg_snapshot_xmax(snapshot)))[1] FROM cursors)
     ORDER BY m.txid, m.seq LIMIT 1))
SELECT CASE WHEN NOT EXISTS (SELECT FROM cursors) OR EXISTS (SELECT FROM above WHERE n >= 1000) THEN '0'
            ELSE coalesce((SELECT txid::text FROM (SELECT oldest AS txid FROM above UNION ALL SELECT txid FROM unseen) t
                           WHERE txid IS NOT NULL ORDER BY t.txid LIMIT 1), '18446744073709551615') END;
