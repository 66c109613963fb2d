-- Who asks, whether they may see how far standbys are, and which standbys a commit waits for.
SELECT current_user, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), current_setting('synchronous_standby_names');
