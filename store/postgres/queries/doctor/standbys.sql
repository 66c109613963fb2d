-- Standbys that are connected, and whether commits wait for them; NULL where this user may not see that.
SELECT coalesce(application_name, ''), coalesce(sync_state, ''), backend_xmin IS NOT NULL FROM pg_stat_replication ORDER BY 1;
