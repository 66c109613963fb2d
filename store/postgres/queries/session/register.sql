-- Register a relay, with a cursor row for each of its sinks from the first moment on. No row: the name is taken.
-- $1 id, $2 name, $3 sinks, $4 lease in microseconds, $5 host, $6 pid, $7 version, $8 settings of each sink
WITH relay AS (
    INSERT INTO outbox_relays (id, name, sinks, lease, host, pid, version, settings, heartbeat_at, leased_until)
    VALUES ($1::text::uuid, $2, $3::text[], $4::bigint * interval '1 microsecond', $5, $6::int, $7, $8::jsonb, clock_timestamp(),
            clock_timestamp() + $4::bigint * interval '1 microsecond')
    ON CONFLICT (name) DO NOTHING
    RETURNING id, sinks),
cursor AS (
    INSERT INTO outbox_cursors (sink, relay, no, snapshot, partitions, seqs, published, settled_at)
    SELECT s, relay.id, 0, pg_current_snapshot(), '{}', '{}', 0, clock_timestamp()
    FROM relay, unnest(relay.sinks) s
    RETURNING 1)
SELECT count(*) FROM cursor;
