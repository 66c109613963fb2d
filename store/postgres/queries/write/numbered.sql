-- Numbers those of the messages in fresh whose keys are serialised, and writes them all. The upsert locks a key until the
-- transaction ends and numbers it in one; in the order of keys, so that two writers do not wait for each other. It is done
-- before the first row is written, because the window needs all of it: whoever has the lock draws the lower seq.
numbers AS (
    INSERT INTO outbox_keys AS k (partition_key, key_seq)
    SELECT partition_key, count(*) FROM fresh WHERE serialize GROUP BY partition_key ORDER BY partition_key COLLATE "C"
    ON CONFLICT (partition_key) DO UPDATE SET key_seq = k.key_seq + excluded.key_seq
    RETURNING k.partition_key, k.key_seq)
INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at, key_seq)
SELECT id, topic, fresh.partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, available_at,
    coalesce(numbers.key_seq + 1 - row_number() OVER (PARTITION BY numbers.partition_key ORDER BY n DESC), 0)
FROM fresh LEFT JOIN numbers ON fresh.serialize AND numbers.partition_key = fresh.partition_key
ORDER BY n
RETURNING id::text, partition_id, seq, txid::text
