-- How the outbox's tables are kept ('p': in the log), and the cache of its sequence; no row where there are no tables.
SELECT m.relpersistence::text, i.relpersistence::text, s.seqcache
FROM pg_class m
LEFT JOIN pg_class i ON i.oid = to_regclass('outbox_incarnation')
LEFT JOIN pg_sequence s ON s.seqrelid = to_regclass('outbox_messages_seq_seq')
WHERE m.oid = to_regclass('outbox_messages');
