-- One row, taken once: the snapshot of this statement, the first transaction that it cannot see (rows of another server's
-- numbering may lie above: no index is gone through past it), the sequence's last value, the incarnation's token, how far the
-- server's own log has got, the clock.
now AS MATERIALIZED (
    SELECT pg_current_snapshot() AS s, pg_snapshot_xmax(pg_current_snapshot()) AS ends, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS wal, (SELECT last_value FROM outbox_messages_seq_seq) AS top,
           (SELECT token FROM outbox_incarnation) AS token, clock_timestamp() AS at),
-- Whether any key of the sink may be blocked: nothing more is asked where nothing is parked or dead. Each is the first of an
-- index's order: where the sink has none and others have many, a planner would else go through the index of all ids.
held AS MATERIALIZED (
    SELECT (SELECT true FROM outbox_parked WHERE sink = $1 ORDER BY partition_id, partition_key, place, seq LIMIT 1) IS NOT NULL
        OR (SELECT true FROM outbox_dead WHERE sink = $1 AND blocks ORDER BY partition_id, partition_key, place LIMIT 1) IS NOT NULL AS blocked)
