-- One row, taken once: the snapshot of this statement, the sequence's last value, the incarnation's token, the clock.
now AS MATERIALIZED (
    SELECT pg_current_snapshot() AS s, (SELECT last_value FROM outbox_messages_seq_seq) AS top,
           (SELECT token FROM outbox_incarnation) AS token, clock_timestamp() AS at),
-- Whether any key of the sink may be blocked: nothing more is asked where nothing is parked or dead.
held AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM outbox_parked WHERE sink = $1) OR EXISTS (SELECT FROM outbox_dead WHERE sink = $1 AND blocks) AS blocked)
