-- The outbox at a glance: one row for each sink, or one row without a sink. What is counted of a sink ($1; '': of all), the function
-- counts, as it does for the view outbox_status.
SELECT version(),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'schema'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'partitions'), ''),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'lineage'), ''),
       (SELECT nullif(value, '')::timestamptz FROM outbox_meta WHERE name = 'incarnated'),
       coalesce((SELECT value FROM outbox_meta WHERE name = 'rebased'), ''),
       clock_timestamp(),
       (SELECT count(*) FROM outbox_relays WHERE leased_until > clock_timestamp()),
       s.name, coalesce(g.backlog, 0), coalesce(g.backlog_at_least, false), g.oldest,
       coalesce(g.parked_retry, 0), coalesce(g.parked_scheduled, 0), coalesce(g.parked_behind, 0), coalesce(g.parked_paused, 0), coalesce(g.blocked_keys, 0),
       coalesce(g.dead, 0), coalesce(g.counts_at_least, false), coalesce(g.published, 0), coalesce(g.rate, 0),
       coalesce(g.partitions_owned, 0), coalesce(g.partitions_free, 0), g.last_settle,
       coalesce(s.topics, '{}'), coalesce(s.exclude, '{}'), s.created_at, s.seen_at,
       (SELECT coalesce(json_agg(json_build_object('relay', r.name, 'settings', coalesce(r.settings ->> s.name, '')) ORDER BY r.name), '[]')
        FROM outbox_relays r WHERE s.name = ANY (r.sinks) AND r.leased_until > clock_timestamp())
FROM (SELECT 1) one
LEFT JOIN outbox_read_status($1::text) g ON true
LEFT JOIN outbox_sinks s ON s.name = g.sink_name
ORDER BY s.name;
