SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
       pg_is_in_recovery();
