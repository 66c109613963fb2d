-- $1 topic, $2 and $3 first and last number, $4 keys, $5 payload
INSERT INTO outbox_messages (topic, type, partition_key, payload)
SELECT $1, 'Measured', 'key-' || n % $4, $5
FROM generate_series($2::bigint, $3::bigint) n
