-- Write messages in argument order: the trigger draws each row's number when its turn comes.
WITH source AS (
--:source
)
INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at)
SELECT id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at
FROM source
ORDER BY n
RETURNING id::text, partition_id, seq, txid::text
