-- Register a sink with its cursors, from the beginning of the outbox: nothing up to 0 has been handed over, whatever the
-- snapshot. Where the sink exists, only note that it was seen.
WITH made AS (
    INSERT INTO outbox_sinks (name) VALUES ($1)
    ON CONFLICT (name) DO UPDATE SET seen_at = clock_timestamp()
    RETURNING name, xmax = 0 AS fresh)
INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq)
SELECT made.name, p, pg_current_snapshot(), 0
FROM made, generate_series(0, (SELECT value::int FROM outbox_meta WHERE name = 'partitions') - 1) p
WHERE made.fresh
ON CONFLICT DO NOTHING;
