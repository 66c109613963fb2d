-- Register a sink with its cursors, from where it starts: nothing above that number has been handed over, nor anything that
-- the snapshot does not see. Where the sink exists, note what it takes, and that it was seen.
--
-- $1 name; $2 topics and $3 exclude, $4 takes and $5 leaves as regular expressions; $6 start after what is committed now, or
-- $7 with what was created then or later
WITH start AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM outbox_sinks WHERE name = $1::text) THEN 0
                WHEN $6::boolean THEN (SELECT last_value FROM outbox_messages_seq_seq)
                WHEN $7::timestamptz IS NULL THEN 0
                ELSE coalesce((SELECT min(seq) - 1 FROM outbox_messages WHERE created_at >= $7),
                              (SELECT last_value FROM outbox_messages_seq_seq)) END AS seq),
made AS (
    INSERT INTO outbox_sinks (name, topics, exclude, takes, leaves, start_seq)
    SELECT $1::text, $2::text[], $3::text[], $4::text, $5::text, start.seq FROM start
    ON CONFLICT (name) DO UPDATE SET seen_at = clock_timestamp(), topics = $2::text[], exclude = $3::text[], takes = $4::text, leaves = $5::text
    RETURNING name, start_seq, xmax = 0 AS fresh)
INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq)
SELECT made.name, p, pg_current_snapshot(), made.start_seq
FROM made, generate_series(0, (SELECT value::int FROM outbox_meta WHERE name = 'partitions') - 1) p
WHERE made.fresh
ON CONFLICT DO NOTHING;
