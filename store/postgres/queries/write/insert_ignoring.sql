-- Write those messages whose id was not written before.
WITH source AS MATERIALIZED (
--:source
),
known AS MATERIALIZED (
    SELECT w.id FROM outbox_written(ARRAY(SELECT source.id FROM source)) w)
INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at)
SELECT id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at
FROM source
WHERE id NOT IN (SELECT known.id FROM known)
ORDER BY n
ON CONFLICT (id) DO NOTHING
RETURNING id::text, partition_id, seq, txid::text
