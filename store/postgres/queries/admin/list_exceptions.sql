-- Messages that are parked or dead, newest first, by the indexes (txid, seq) of both tables; as list_log.sql. A message that
-- is so in several sinks comes once for each.
-- $13 state, $14 reason, $15 code, $16 attempts at least; $1 sink.
SELECT m.n >= $4::bigint AS last, f.found,
       m.txid::text, m.seq, m.partition_id, m.id, m.topic, m.partition_key, m.type, m.content_type, m.headers::text, m.scope,
       m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at,
       m.payload_bytes
FROM (SELECT row_number() OVER (ORDER BY x.txid DESC, x.seq DESC) AS n, x.*
      FROM (
          (SELECT 'parked' AS state, k.sink, k.reason, k.last_code AS code, k.attempts,
                  k.txid, k.seq, k.partition_id, k.id, k.topic, k.partition_key, k.type, k.content_type, k.headers, k.scope,
                  k.correlation_id, k.causation_id, k.aggregate_type, k.aggregate_id, k.event_id, k.key_seq, k.created_at, k.available_at,
                  octet_length(k.payload) AS payload_bytes
           FROM outbox_parked k
           WHERE (k.txid, k.seq) < ($2::text::xid8, $3::bigint) AND $13::text IN ('', 'parked')
           ORDER BY k.txid DESC, k.seq DESC
           LIMIT $4::bigint)
          UNION ALL
          (SELECT 'dead', d.sink, '', d.code, d.attempts,
                  d.txid, d.seq, d.partition_id, d.id, d.topic, d.partition_key, d.type, d.content_type, d.headers, d.scope,
                  d.correlation_id, d.causation_id, d.aggregate_type, d.aggregate_id, d.event_id, d.key_seq, d.created_at, d.available_at,
                  octet_length(d.payload)
           FROM outbox_dead d
           WHERE (d.txid, d.seq) < ($2::text::xid8, $3::bigint) AND $13::text IN ('', 'dead')
           ORDER BY d.txid DESC, d.seq DESC
           LIMIT $4::bigint)) x
      ORDER BY x.txid DESC, x.seq DESC
      LIMIT $4::bigint) m
CROSS JOIN LATERAL (SELECT
           ($1::text = '' OR m.sink = $1)
       AND ($6::text = '' OR m.topic = $6) AND ($7::text = '' OR m.type = $7) AND ($8::text = '' OR m.event_id = $8)
       AND ($9::text = '' OR m.correlation_id = $9) AND ($10::text = '' OR m.scope = $10)
       AND ($11::timestamptz IS NULL OR m.created_at >= $11) AND ($12::timestamptz IS NULL OR m.created_at < $12)
       AND ($14::text = '' OR m.reason = $14) AND ($15::text = '' OR m.code = $15) AND m.attempts >= $16::int AS found) f
WHERE f.found OR m.n >= $4::bigint
ORDER BY m.txid DESC, m.seq DESC
LIMIT $5::bigint;
