-- A read: the late rows of all partitions held, and fresh rows of some. The first row says what the read was; the others
-- are messages, in no order.
--
-- $1 sink; $2 snapshot and $3 largest L of each group; $4 partitions, $5 group (from 1), $6 L, and $7 fresh rows wanted of
-- each (0: late ones only); $8 bytes of late payloads, $9 of fresh payloads; $10 floor: rows up to it are never late; $11 the
-- first read of some since they were loaded; $12 and $13 what the sink takes and leaves, as regular expressions
--
-- Fresh rows are cut in the order of their numbers; one more than fits shows that there are more.
-- Each branch has its own index order and LIMIT, in CTEs of its own: a generic plan cannot spoil it.
WITH
--:now
, g AS MATERIALIZED (
    SELECT g.no::int, g.s::pg_snapshot AS s, g.top FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY g(s, top, no)),
p AS MATERIALIZED (
    SELECT * FROM unnest($4::int[], $5::int[], $6::bigint[], $7::int[]) p(part, g, l, n)),
-- Transactions that were open at S and have ended.
done AS MATERIALIZED (
    SELECT g.no, g.top, x FROM g CROSS JOIN LATERAL pg_snapshot_xip(g.s) x
    WHERE pg_visible_in_snapshot(x, (SELECT s FROM now))),
cand AS MATERIALIZED (
    SELECT done.no, m.* FROM done CROSS JOIN LATERAL (
        SELECT partition_id, seq, octet_length(payload) AS bytes FROM outbox_messages
        WHERE txid = done.x AND seq <= done.top AND seq > $10 ORDER BY seq LIMIT :more) m
    UNION ALL
    SELECT g.no, m.* FROM g CROSS JOIN LATERAL (
        SELECT partition_id, seq, octet_length(payload) AS bytes FROM outbox_messages
        WHERE txid >= pg_snapshot_xmax(g.s) AND txid < (SELECT ends FROM now) AND seq <= g.top AND seq > $10 ORDER BY txid, seq LIMIT :more) m),
-- Groups with more late rows than a page: they hand over nothing now.
over AS MATERIALIZED (
    SELECT no FROM cand GROUP BY no HAVING count(*) > :page OR sum(bytes) > $8),
late AS MATERIALIZED (
    SELECT c.partition_id, c.seq FROM cand c JOIN p ON p.part = c.partition_id AND p.g = c.no AND c.seq <= p.l
    WHERE c.no NOT IN (SELECT no FROM over)),
asked AS MATERIALIZED (
    SELECT part, l, n FROM p WHERE n > 0 AND g NOT IN (SELECT no FROM over)),
-- Of a sink that does not take everything: the limit comes first, and what it leaves is dropped afterwards. L goes on from the
-- last row that was looked at. Bytes are those of what it takes.
sifted AS MATERIALIZED (
    SELECT f.part, f.seq, f.taken, sum(f.bytes) OVER (ORDER BY f.seq) - f.bytes AS before
    FROM (SELECT asked.part, o.seq, t.taken, CASE WHEN t.taken THEN octet_length(o.payload) ELSE 0 END AS bytes
          FROM asked CROSS JOIN LATERAL (
              SELECT o.seq, o.topic, o.payload FROM outbox_messages o
              WHERE o.partition_id = asked.part AND o.seq > asked.l ORDER BY o.seq LIMIT asked.n) o
          CROSS JOIN LATERAL (SELECT ($12::text = '' OR o.topic ~ $12) AND ($13::text = '' OR o.topic !~ $13) AS taken) t
          WHERE $12::text <> '' OR $13::text <> '') f)
SELECT (SELECT s::text FROM now), (SELECT top FROM now), (SELECT concat(token, ' ', wal) FROM now), array(SELECT no::bigint FROM over),
--:norow
UNION ALL
SELECT NULL, NULL, NULL, NULL,
--:record
FROM late CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = late.partition_id AND o.seq = late.seq LIMIT 1) m
WHERE (NOT $11 OR NOT (
--:known
)) AND ($12::text = '' OR m.topic ~ $12) AND ($13::text = '' OR m.topic !~ $13)
UNION ALL
SELECT NULL, NULL, NULL, NULL,
--:record
FROM (SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.seq) - octet_length(f.payload) AS before
      FROM asked CROSS JOIN LATERAL (
          SELECT * FROM outbox_messages o WHERE o.partition_id = asked.part AND o.seq > asked.l ORDER BY o.seq LIMIT asked.n) f
      WHERE $12::text = '' AND $13::text = '') m
WHERE m.before <= $9
UNION ALL
SELECT NULL, NULL, NULL, NULL,
--:record
FROM (SELECT part, seq FROM sifted WHERE taken AND before <= $9) s
CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = s.part AND o.seq = s.seq LIMIT 1) m
UNION ALL
SELECT NULL, max(seq), NULL, array[part, count(*)]::bigint[],
--:norow
FROM sifted WHERE before <= $9 GROUP BY part;
