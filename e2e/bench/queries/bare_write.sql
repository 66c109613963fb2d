-- What a service without an outbox writes: a row of the same size in a table of its own.
INSERT INTO plain_rows (id, topic, partition_key, payload) VALUES ($1, $2, $3, $4)
