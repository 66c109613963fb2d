-- The read of a relay whose partitions are all exhausted: whatever S did not see, late or fresh, found by transaction alone.
-- Its cost does not depend on the number of partitions. The first row says what the read was.
--
-- $1 sink, $2 S, $3 partitions, $4 bytes of payloads, $5 floor, $6 and $7 what the sink takes and leaves
WITH
--:now
, done AS MATERIALIZED (
    SELECT x FROM pg_snapshot_xip($2::text::pg_snapshot) x WHERE pg_visible_in_snapshot(x, (SELECT s FROM now))),
cand AS MATERIALIZED (
    SELECT m.* FROM done CROSS JOIN LATERAL (
        SELECT partition_id, seq, octet_length(payload) AS bytes FROM outbox_messages
        WHERE txid = done.x AND seq > $5 ORDER BY seq LIMIT :more) m
    UNION ALL
    (SELECT partition_id, seq, octet_length(payload) AS bytes FROM outbox_messages
     WHERE txid >= pg_snapshot_xmax($2::text::pg_snapshot) AND txid < (SELECT ends FROM now) AND seq > $5 ORDER BY txid, seq LIMIT :more)),
over AS MATERIALIZED (
    SELECT 1 AS no FROM cand HAVING count(*) > :page OR sum(bytes) > $4),
mine AS MATERIALIZED (
    SELECT c.partition_id, c.seq FROM cand c
    WHERE c.partition_id = ANY ($3::int[]) AND NOT EXISTS (SELECT FROM over))
SELECT (SELECT s::text FROM now), (SELECT top FROM now), (SELECT concat(token, ' ', wal) FROM now), array(SELECT no::bigint FROM over),
--:norow
UNION ALL
SELECT NULL, NULL, NULL, NULL,
--:record
FROM mine CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = mine.partition_id AND o.seq = mine.seq LIMIT 1) m
WHERE ($6::text = '' OR m.topic ~ $6) AND ($7::text = '' OR m.topic !~ $7);
