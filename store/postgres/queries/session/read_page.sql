-- A page of a late pass. The limit comes first, and what is not ours is dropped from the page afterwards: the pass goes on
-- from the last row scanned, not from the last one handed over. Only rows that S' sees: the list of transactions holds no
-- others. The first row says what the read was; its last column is {last row scanned, how many, all of them}.
--
-- $1 sink, $2 late transactions, $3 l, $4 largest L, $5 partitions, $6 L of each, $7 bytes of payloads, $8 floor,
-- $9 the first read of some since they were loaded, $10 and $11 what the sink takes and leaves
WITH
--:now
, p AS MATERIALIZED (
    SELECT * FROM unnest($5::int[], $6::bigint[]) p(part, l)),
-- Where the rows lie, so that each is looked up once by its place and not again by an index: within a statement it stays.
found AS MATERIALIZED (
    SELECT m.seq, m.tid FROM unnest($2::text[]) x CROSS JOIN LATERAL (
        SELECT seq, ctid AS tid FROM outbox_messages
        WHERE txid = x::xid8 AND seq > greatest($3::bigint, $8::bigint) AND seq <= $4 ORDER BY seq LIMIT :page) m
    ORDER BY m.seq LIMIT :page),
sized AS MATERIALIZED (
    SELECT f.seq, f.tid, sum(octet_length(o.payload)) OVER (ORDER BY f.seq) AS bytes, row_number() OVER (ORDER BY f.seq) AS n
    FROM found f CROSS JOIN LATERAL (SELECT payload FROM outbox_messages o WHERE o.ctid = f.tid LIMIT 1) o),
page AS MATERIALIZED (
    SELECT seq, tid FROM sized WHERE bytes <= $7 OR n = 1)
SELECT (SELECT s::text FROM now), (SELECT top FROM now), (SELECT concat(token, ' ', wal) FROM now),
       (SELECT array[coalesce(max(seq), 0)::bigint, count(*), (SELECT count(*) FROM found)] FROM page),
--:norow
UNION ALL
SELECT NULL, NULL, NULL, NULL,
--:record
FROM page CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.ctid = page.tid LIMIT 1) m
JOIN p ON p.part = m.partition_id AND m.seq <= p.l
WHERE (NOT $9 OR NOT (
--:known
)) AND ($10::text = '' OR m.topic ~ $10) AND ($11::text = '' OR m.topic !~ $11);
