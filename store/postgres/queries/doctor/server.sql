-- What the server is, and its time.
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
       pg_is_in_recovery(), clock_timestamp(), current_user::text, current_database()::text,
       pg_has_role('pg_read_all_stats', 'MEMBER');
