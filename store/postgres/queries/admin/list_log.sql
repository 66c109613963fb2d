-- Messages, newest first, by the index (txid, seq) from the place ($2, $3) on: at most $4 rows are read, and what the
-- filter leaves of them comes back, at most $5. The last row that may be read comes back in any case (found is false if
-- the filter refuses it): the next page goes on from there.
-- $6 topic, $7 type, $8 event id, $9 correlation id, $10 scope, $11 since, $12 until, $13 state, $14 nothing older than this
-- transaction is in that state.
SELECT m.n >= $4::bigint AS last, f.found,
       m.txid::text, m.seq, m.partition_id, m.id, m.topic, m.partition_key, m.type, m.content_type, m.headers::text, m.scope,
       m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at,
       octet_length(m.payload)
FROM (SELECT row_number() OVER (ORDER BY o.txid DESC, o.seq DESC) AS n, o.*
      FROM outbox_messages o
      WHERE (o.txid, o.seq) < ($2::text::xid8, $3::bigint) AND o.txid >= $14::text::xid8
      ORDER BY o.txid DESC, o.seq DESC
      LIMIT $4::bigint) m
CROSS JOIN LATERAL (SELECT
           ($6::text = '' OR m.topic = $6) AND ($7::text = '' OR m.type = $7) AND ($8::text = '' OR m.event_id = $8)
       AND ($9::text = '' OR m.correlation_id = $9) AND ($10::text = '' OR m.scope = $10)
       AND ($11::timestamptz IS NULL OR m.created_at >= $11) AND ($12::timestamptz IS NULL OR m.created_at < $12)
       AND CASE WHEN $13::text = '' THEN true
                ELSE EXISTS (SELECT FROM
--:state
                             WHERE st.state = $13)
                     OR $13 = 'pending' AND NOT EXISTS (SELECT FROM outbox_sinks) END AS found) f
WHERE f.found OR m.n >= $4::bigint
ORDER BY m.txid DESC, m.seq DESC
LIMIT $5::bigint;
