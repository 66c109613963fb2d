-- The dead letters of one message ($2), one for each sink, with payload and with how many parked messages wait behind it.
SELECT d.txid::text, d.seq, d.partition_id, d.id, d.topic, d.partition_key, d.type, d.content_type, d.headers::text, d.scope,
       d.correlation_id, d.causation_id, d.aggregate_type, d.aggregate_id, d.event_id, d.key_seq, d.created_at, d.available_at,
       octet_length(d.payload),
       d.sink, d.code, d.error, d.attempts, d.first_failure, d.last_failure, d.relay, d.blocks,
       d.payload,
       CASE WHEN d.blocks THEN (SELECT count(*) FROM outbox_parked k
                                WHERE k.sink = d.sink AND k.partition_id = d.partition_id AND k.partition_key = d.partition_key)
            ELSE 0 END
FROM outbox_sinks s
JOIN outbox_dead d ON d.sink = s.name AND d.id = $2::uuid
WHERE $1::text = '' OR s.name = $1
ORDER BY d.sink;
