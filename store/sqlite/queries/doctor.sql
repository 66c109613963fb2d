-- What the doctor asks of the tables.

-- name: newest
SELECT id, topic, partition_key, type, content_type, scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, seq
FROM outbox_messages ORDER BY seq DESC LIMIT ?1;
