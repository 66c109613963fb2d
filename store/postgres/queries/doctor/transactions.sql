-- Transactions of this database that have been open for longer than $1 milliseconds and hold a snapshot or have written, the oldest
-- first; hidden are those of other users that this one may not see.
SELECT a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::bigint, false
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - $1::bigint * interval '1 millisecond'
  AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
UNION ALL
SELECT 0, '', '', '', count(*), true FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.query = '<insufficient privilege>' AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
HAVING count(*) > 0
ORDER BY 6, 5 DESC
LIMIT 6;
