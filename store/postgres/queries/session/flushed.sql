-- How far the server's log is on its disk, and the token of its life.
SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, 1, 1, coalesce((SELECT token::text FROM outbox_incarnation), '');
