WITH old AS (
    DELETE FROM outbox_cursors c USING outbox_incarnation t
    WHERE c.sink = $1 AND c.relay = $2::text::uuid AND c.no = $3 AND t.token = $4::text::uuid
    RETURNING c.*),
new AS (
    INSERT INTO outbox_cursors (sink, relay, no, snapshot, late_snapshot, late_seq, partitions, seqs, published, settled_at)
    SELECT $1, $2::text::uuid, old.no + 1, $5::text::pg_snapshot, nullif($6::text, '')::pg_snapshot,
           CASE WHEN $6 <> '' THEN $7::bigint END, $8::int[], $9::bigint[], $10::bigint, clock_timestamp()
    FROM old
    RETURNING no),
own AS (
    UPDATE outbox_partitions p SET snapshot = u.s::pg_snapshot, seq = u.l, late_snapshot = nullif(u.s2, '')::pg_snapshot,
           late_seq = CASE WHEN u.s2 <> '' THEN u.l2 END,
           relay = CASE WHEN u.gone THEN NULL ELSE p.relay END,
           freed_at = CASE WHEN u.gone THEN clock_timestamp() ELSE p.freed_at END
    FROM old, unnest($11::int[], $12::text[], $13::bigint[], $14::text[], $15::bigint[], $16::boolean[]) u(part, s, l, s2, l2, gone)
    WHERE p.sink = $1 AND p.partition_id = u.part AND p.relay = $2::text::uuid
    RETURNING 1),
-- The row that goes was the last of its minute, or the last with partitions that are given back.
ended AS (
    SELECT * FROM old
    WHERE date_trunc('minute', settled_at, 'UTC') < date_trunc('minute', clock_timestamp(), 'UTC') OR true = ANY ($16::boolean[])),
--:progress
