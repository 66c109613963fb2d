-- Dead letters, newest first, by their index (txid, seq) from the place ($2, $3, $16 sink) on: at most $4 rows are read, and
-- what the filter leaves of them comes back, at most $5. The last row that may be read comes back in any case, as in
-- list_log.sql.
-- $1 sink, $6 topic, $7 type, $8 event id, $9 correlation id, $10 scope, $11 died since, $12 died until, $13 code, $14 attempts
-- at least, $15 key.
SELECT m.n >= $4::bigint AS last, f.found,
       m.txid::text, m.seq, m.partition_id, m.id, m.topic, m.partition_key, m.type, m.content_type, m.headers::text, m.scope,
       m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at,
       octet_length(m.payload),
       m.sink, m.code, m.error, m.attempts, m.first_failure, m.last_failure, m.relay, m.blocks
FROM (SELECT row_number() OVER (ORDER BY d.txid DESC, d.seq DESC, d.sink DESC) AS n, d.*
      FROM outbox_dead d
      WHERE (d.txid, d.seq) <= ($2::text::xid8, $3::bigint)
        AND ((d.txid, d.seq) < ($2::text::xid8, $3::bigint) OR d.sink < $16::text)
      ORDER BY d.txid DESC, d.seq DESC, d.sink DESC
      LIMIT $4::bigint) m
CROSS JOIN LATERAL (SELECT
           ($1::text = '' OR m.sink = $1)
       AND ($6::text = '' OR m.topic = $6) AND ($7::text = '' OR m.type = $7) AND ($8::text = '' OR m.event_id = $8)
       AND ($9::text = '' OR m.correlation_id = $9) AND ($10::text = '' OR m.scope = $10)
       AND ($11::timestamptz IS NULL OR m.last_failure >= $11) AND ($12::timestamptz IS NULL OR m.last_failure < $12)
       AND ($13::text = '' OR m.code = $13) AND m.attempts >= $14::int AND ($15::text = '' OR m.partition_key = $15) AS found) f
WHERE f.found OR m.n >= $4::bigint
ORDER BY m.txid DESC, m.seq DESC, m.sink DESC
LIMIT $5::bigint;
