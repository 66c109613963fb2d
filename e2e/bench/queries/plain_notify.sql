-- What a service writes that tells a bare loop of each row: $1 id, $2 payload
WITH written AS (INSERT INTO plain_rows (id, topic, partition_key, payload) VALUES ($1, 'orders', 'key', $2))
SELECT pg_notify('plain_rows', '')
