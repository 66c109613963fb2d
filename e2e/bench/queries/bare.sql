-- The columns of a relay's read, along the primary key, 2,000 at a time: what a plain reader of the whole table would do.
-- $1 and $2: where the page before ended
SELECT partition_id, seq, id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id,
       causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at
FROM outbox_messages
WHERE (partition_id, seq) > ($1, $2)
ORDER BY partition_id, seq
LIMIT 2000
