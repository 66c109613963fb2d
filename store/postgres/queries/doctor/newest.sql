-- The newest messages, without what is large.
SELECT id, topic, partition_key, type, content_type, scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, partition_id, seq
FROM outbox_messages
ORDER BY txid DESC, seq DESC LIMIT $1;
