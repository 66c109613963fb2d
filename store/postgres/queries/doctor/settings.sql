-- Settings as this session has them, those of its role and database included.
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'max_slot_wal_keep_size', 'autovacuum');
