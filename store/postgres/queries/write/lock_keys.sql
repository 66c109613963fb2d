-- Lock keys until the transaction ends, in their order. $1: a JSON array of keys.
INSERT INTO outbox_keys AS k (partition_key, key_seq)
SELECT j.key, 0 FROM json_array_elements_text($1::text::json) AS j(key) ORDER BY j.key COLLATE "C"
ON CONFLICT (partition_key) DO UPDATE SET key_seq = k.key_seq
