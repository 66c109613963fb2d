-- How far the server's log is on the disks of as many synchronous standbys as a commit waits for (null: so many are not
-- connected), how many are connected and how many are needed, and the token of the server's life.
WITH needed AS MATERIALIZED (
    SELECT coalesce(substring(current_setting('synchronous_standby_names') FROM '^\s*(?:[A-Za-z]+\s+)?(\d+)\s*\('), '1')::int AS n),
standbys AS MATERIALIZED (
    SELECT flush_lsn FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming')
SELECT (SELECT (flush_lsn - '0/0'::pg_lsn)::bigint FROM standbys ORDER BY flush_lsn DESC NULLS LAST
        LIMIT 1 OFFSET (SELECT n - 1 FROM needed)),
       (SELECT count(*)::int FROM standbys), (SELECT n FROM needed),
       coalesce((SELECT token::text FROM outbox_incarnation), '');
