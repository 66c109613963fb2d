-- Standbys that are connected, and whether commits wait for them; NULL where this user may not see that.
SELECT coalesce(application_name, ''), coalesce(sync_state, '') FROM pg_stat_replication ORDER BY 1;
