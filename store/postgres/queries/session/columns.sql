       m.partition_id, m.seq, m.id, m.topic, m.partition_key, m.type, m.payload, m.content_type,
       CASE WHEN m.headers <> '{}' THEN m.headers::text END,
       m.scope, m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at
