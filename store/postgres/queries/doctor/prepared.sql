-- Transactions of this database that were prepared for two-phase commit longer than $1 milliseconds ago, the oldest first.
SELECT gid, owner::text, (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - $1::bigint * interval '1 millisecond'
ORDER BY prepared LIMIT 5;
