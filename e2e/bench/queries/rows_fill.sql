-- $1 how many, $2 keys, $3 payload
INSERT INTO rows (key, payload) SELECT 'key-' || n % $2, $3 FROM generate_series(1, $1::bigint) n
