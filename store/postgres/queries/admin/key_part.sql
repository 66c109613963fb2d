-- The partition of the key $1, and whether the newest $2 messages of it have the key.
SELECT p.part, EXISTS (SELECT FROM (SELECT m.partition_key FROM outbox_messages m WHERE m.partition_id = p.part ORDER BY m.seq DESC LIMIT $2::bigint) m
                       WHERE m.partition_key = $1)
FROM (SELECT ('x' || encode(substring(sha256(replace($1::text, '\', '\\')::bytea) from 1 for 4), 'hex'))::bit(32)::int
             & ((SELECT value::int FROM outbox_meta WHERE name = 'partitions') - 1) AS part) p;
