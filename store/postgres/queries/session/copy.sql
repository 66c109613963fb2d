m.partition_id, m.partition_key, m.seq, m.txid, m.id, m.topic, m.type, m.payload, m.content_type, m.headers, m.scope,
           m.correlation_id, m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at
