-- For how long retention has waited for each sink, in microseconds: what the sink has not passed, whether it takes it or not, is
-- so much older than the retention. Nothing where no relay looks after retention. $1 is '': all sinks.
WITH
--:cursors
, setting AS MATERIALIZED (
    SELECT nullif(value, '')::bigint AS us FROM outbox_meta WHERE name = 'retention')
SELECT c.sink, least(extract(epoch FROM clock_timestamp() - min(o.created_at)) * 1000000 - setting.us, 9000000000000000)::bigint
FROM setting CROSS JOIN cursors c
CROSS JOIN LATERAL (SELECT m.created_at FROM outbox_messages m
                    WHERE m.partition_id = c.partition_id AND m.seq > c.seq ORDER BY m.seq LIMIT 1) o
WHERE setting.us IS NOT NULL
GROUP BY c.sink, setting.us;
