-- The minutes from $2 on in which the sink $1 published. The row of a running relay says what no copy says yet.
SELECT t.minute, sum(t.n)::bigint
FROM (SELECT p.minute, p.count AS n FROM outbox_progress p WHERE p.sink = $1::text AND p.minute >= $2::timestamptz
      UNION ALL
      SELECT date_trunc('minute', c.settled_at, 'UTC'),
             c.published - coalesce((SELECT p.published FROM outbox_progress p WHERE p.sink = c.sink AND p.relay = c.relay ORDER BY p.no DESC LIMIT 1), 0)
      FROM outbox_cursors c WHERE c.sink = $1 AND c.settled_at >= $2) t
GROUP BY t.minute
HAVING sum(t.n) > 0
ORDER BY t.minute;
