-- The messages of one key ($2), newest first by seq, from $3 down, by the primary key of its partition; otherwise as
-- list_log.sql. seq is the order in which they go out.
-- $13 state, $14 reason, $15 code, $16 attempts at least; $17 whether any of these four is asked for.
SELECT m.n >= $4::bigint AS last, f.found,
       m.txid::text, m.seq, m.partition_id, m.id, m.topic, m.partition_key, m.type, m.content_type, m.headers::text, m.scope,
       m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at,
       octet_length(m.payload)
FROM (SELECT row_number() OVER (ORDER BY o.seq DESC) AS n, o.*
      FROM outbox_messages o
      WHERE o.seq < $3::bigint
        AND o.partition_id = (('x' || encode(substring(sha256(replace($2::text, '\', '\\')::bytea) from 1 for 4), 'hex'))::bit(32)::int
                              & ((SELECT value::int FROM outbox_meta WHERE name = 'partitions') - 1))
      ORDER BY o.seq DESC
      LIMIT $4::bigint) m
CROSS JOIN LATERAL (SELECT
           m.partition_key = $2
       AND ($6::text = '' OR m.topic = $6) AND ($7::text = '' OR m.type = $7) AND ($8::text = '' OR m.event_id = $8)
       AND ($9::text = '' OR m.correlation_id = $9) AND ($10::text = '' OR m.scope = $10)
       AND ($11::timestamptz IS NULL OR m.created_at >= $11) AND ($12::timestamptz IS NULL OR m.created_at < $12)
       AND CASE WHEN NOT $17::boolean THEN true
                ELSE EXISTS (SELECT FROM
--:state
                             WHERE ($13::text = '' OR st.state = $13) AND ($14::text = '' OR st.reason = $14)
                               AND ($15::text = '' OR st.last_code = $15) AND st.attempts >= $16::int) END AS found) f
WHERE f.found OR m.n >= $4::bigint
ORDER BY m.seq DESC
LIMIT $5::bigint;
