-- The transactions of a late pass: those that S did not see and S' does. Found one after the other in the index, so that the
-- cost is their number and not that of their rows. $1 S, $2 S', $3 largest L, $4 floor
WITH RECURSIVE bounds AS MATERIALIZED (
    SELECT pg_snapshot_xmax($1::text::pg_snapshot) AS first, pg_snapshot_xmax($2::text::pg_snapshot) AS last),
found(txid) AS (
    (SELECT m.txid FROM bounds CROSS JOIN LATERAL (
        SELECT txid FROM outbox_messages WHERE txid >= bounds.first AND txid < bounds.last ORDER BY txid LIMIT 1) m)
    UNION ALL
    SELECT m.txid FROM found CROSS JOIN bounds CROSS JOIN LATERAL (
        SELECT o.txid FROM outbox_messages o WHERE o.txid > found.txid AND o.txid < bounds.last ORDER BY o.txid LIMIT 1) m)
SELECT coalesce(array_agg(t.txid::text), '{}')
FROM (SELECT x AS txid FROM pg_snapshot_xip($1::text::pg_snapshot) x UNION SELECT found.txid FROM found) t
WHERE pg_visible_in_snapshot(t.txid, $2::text::pg_snapshot)
  AND EXISTS (SELECT FROM outbox_messages m WHERE m.txid = t.txid AND m.seq <= $3 AND m.seq > $4);
