-- Replication slots: how much of the log each keeps back, in bytes, and whether it holds old rows.
SELECT slot_name::text, active, coalesce(wal_status, ''), xmin IS NOT NULL OR catalog_xmin IS NOT NULL,
       coalesce(CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END, 0)::bigint
FROM pg_replication_slots WHERE NOT temporary
ORDER BY active, slot_name;
