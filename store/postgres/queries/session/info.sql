SELECT version(),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'schema'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'partitions'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'lineage'), ''),
       (SELECT seqcache FROM pg_sequence WHERE seqrelid = 'outbox_messages_seq_seq'::regclass);
