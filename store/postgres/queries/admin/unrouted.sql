-- How many of the newest messages, at most 100,000, no sink takes: in the first row how many were looked at, then their topics.
-- Nothing where a sink takes everything, or there is none.
WITH recent AS MATERIALIZED (
    SELECT topic FROM outbox_messages
    ORDER BY txid DESC, seq DESC
    LIMIT CASE WHEN EXISTS (SELECT FROM outbox_sinks) AND NOT EXISTS (SELECT FROM outbox_sinks WHERE takes = '' AND leaves = '')
               THEN 100000 ELSE 0 END)
SELECT '' AS topic, count(*) AS n, 0 AS part FROM recent
UNION ALL
(SELECT m.topic, m.n, 1
 FROM (SELECT topic, count(*) AS n FROM recent GROUP BY topic) m
 WHERE NOT EXISTS (SELECT FROM outbox_sinks s WHERE (s.takes = '' OR m.topic ~ s.takes) AND (s.leaves = '' OR m.topic !~ s.leaves))
 ORDER BY m.n DESC, m.topic LIMIT 10)
ORDER BY part, n DESC, topic;
