partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
        aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at
