-- What this transaction has written so far. Times in microseconds, which every driver reads alike.
SELECT id::text, partition_id, seq, key_seq, topic, partition_key, type, payload, content_type, headers::text, scope,
       correlation_id, causation_id, aggregate_type, aggregate_id, event_id,
       (extract(epoch FROM created_at) * 1000000)::bigint,
       (extract(epoch FROM available_at) * 1000000)::bigint
FROM outbox_messages
WHERE txid = pg_current_xact_id_if_assigned()
ORDER BY seq
