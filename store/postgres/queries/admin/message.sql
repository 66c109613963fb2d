-- One message: from the log, or else from a copy that is parked or dead.
SELECT txid::text, seq, partition_id, id, topic, partition_key, type, content_type, headers::text, scope,
       correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at,
       octet_length(payload), payload
FROM (
    SELECT 1 AS pick, txid, seq, partition_id, id, topic, partition_key, type, content_type, headers, scope,
           correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, payload
    FROM outbox_messages WHERE id = $1::uuid
    UNION ALL
    SELECT 2, txid, seq, partition_id, id, topic, partition_key, type, content_type, headers, scope,
           correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, payload
    FROM outbox_parked WHERE id = $1::uuid
    UNION ALL
    SELECT 3, txid, seq, partition_id, id, topic, partition_key, type, content_type, headers, scope,
           correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at, payload
    FROM outbox_dead WHERE id = $1::uuid) m
ORDER BY pick
LIMIT 1;
