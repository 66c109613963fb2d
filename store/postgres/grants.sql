-- Rights of the four roles on one outbox. Roles belong to the whole server, so nothing here makes them; where they are
-- missing, somebody who may creates them once:
--
--   CREATE ROLE onward_producer NOLOGIN;  -- services: write messages
--   CREATE ROLE onward_relay NOLOGIN;     -- relays: read the log, keep cursors, park, make dead letters
--   CREATE ROLE onward_admin NOLOGIN;     -- people who repair: see everything, requeue, discard, pause
--   CREATE ROLE onward_viewer NOLOGIN;    -- people who look: see everything, payloads included
--
-- and makes the services' own users members: GRANT onward_producer TO orders_service;
GRANT USAGE ON SCHEMA :schema TO onward_producer, onward_relay, onward_admin, onward_viewer;

-- Producers see of the log what a receipt says, and nothing of the other tables. txid, seq and partition_id are not theirs
-- to write. outbox_keys serves writers that serialise keys.
GRANT INSERT (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at) ON outbox_messages TO onward_producer;
GRANT SELECT (id, partition_id, seq, txid) ON outbox_messages TO onward_producer;
GRANT SELECT, INSERT, UPDATE ON outbox_keys TO onward_producer;
GRANT EXECUTE ON FUNCTION outbox_written(uuid[]) TO onward_producer;

-- A relay reads the log and never writes it; retention deletes from it. UPDATE on its sequence: places of scheduled messages; on outbox_meta: the lineage. In
-- outbox_asleep a relay that sleeps leaves its mark.
GRANT SELECT ON outbox_meta, outbox_audit TO onward_relay;
GRANT SELECT, DELETE ON outbox_messages TO onward_relay;
GRANT SELECT, UPDATE ON SEQUENCE outbox_messages_seq_seq, outbox_asleep TO onward_relay;
GRANT UPDATE ON outbox_meta TO onward_relay;
GRANT INSERT ON outbox_audit TO onward_relay;
GRANT SELECT, INSERT, UPDATE ON outbox_sinks, outbox_partitions TO onward_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_relays, outbox_cursors, outbox_parked TO onward_relay;
GRANT SELECT, INSERT, DELETE ON outbox_attempts, outbox_positions, outbox_progress, outbox_marks TO onward_relay;
-- A settle locks the pauses that it parks under, which asks for UPDATE; those that have ended are deleted in passing.
GRANT SELECT, UPDATE, DELETE ON outbox_pauses TO onward_relay;
GRANT SELECT, INSERT ON outbox_dead, outbox_incarnation TO onward_relay;
GRANT EXECUTE ON FUNCTION outbox_lock_lines(text, int[]), outbox_promote(text, int[], text[]), outbox_sweep_pauses(text),
    outbox_rebase(text), outbox_expire(interval, text, uuid) TO onward_relay;

-- People change nothing but through these functions, which audit.
GRANT SELECT ON outbox_messages, outbox_meta, outbox_sinks, outbox_relays, outbox_partitions, outbox_cursors, outbox_parked,
    outbox_dead, outbox_attempts, outbox_positions, outbox_progress, outbox_audit, outbox_keys, outbox_marks, outbox_incarnation, outbox_pauses,
    outbox_status, outbox_pending TO onward_admin, onward_viewer;
GRANT EXECUTE ON FUNCTION outbox_read_status(text), outbox_late(), outbox_partition(text), outbox_published(uuid) TO onward_admin, onward_viewer;
GRANT SELECT ON SEQUENCE outbox_messages_seq_seq, outbox_asleep TO onward_admin, onward_viewer;
GRANT EXECUTE ON FUNCTION outbox_requeue(text, uuid, boolean, text), outbox_discard(text, uuid, text, text),
    outbox_remove_sink(text, text, text), outbox_pause(text, text, text, text, timestamptz, text),
    outbox_resume(text, text, text, text, text) TO onward_admin;
