-- Register a relay, with a cursor row for its sink from the first moment on. 0: the name is taken, or the sink is held.
-- $1 id, $2 name, $3 sink, $4 lease in microseconds, $5 host, $6 pid, $7 version, $8 settings of the sink, $9 does not share
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at),
relay AS (
    INSERT INTO outbox_relays (id, name, sinks, lease, host, pid, version, settings, no_leasing, started_at, heartbeat_at, leased_until)
    SELECT $1::text::uuid, $2, ARRAY[$3::text], $4::bigint * interval '1 microsecond', $5, $6::int, $7, jsonb_build_object($3::text, $8::text), $9::boolean,
           now.at, now.at, now.at + $4::bigint * interval '1 microsecond'
    FROM now
    WHERE NOT EXISTS (SELECT FROM outbox_relays o WHERE o.id <> $1::text::uuid AND $3::text = ANY (o.sinks) AND (o.no_leasing OR $9::boolean))
    ON CONFLICT (name) DO NOTHING
    RETURNING id, sinks),
cursor AS (
    INSERT INTO outbox_cursors (sink, relay, no, snapshot, partitions, seqs, published, settled_at)
    SELECT s, relay.id, 0, pg_current_snapshot(), '{}', '{}', 0, clock_timestamp()
    FROM relay, unnest(relay.sinks) s
    RETURNING 1)
SELECT count(*) FROM cursor;
