-- The statements of writers. Any driver runs them: parameters are plain question marks, texts, bytes and integers.

-- An empty payload is bound as NULL by some drivers.
-- name: insert
INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id,
    causation_id, aggregate_type, aggregate_id, event_id, available_at, key_seq)
VALUES (?, ?, ?, ?, coalesce(?, x''), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq;

-- name: insert_ignoring
INSERT INTO outbox_messages (id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id,
    causation_id, aggregate_type, aggregate_id, event_id, available_at, key_seq)
VALUES (?, ?, ?, ?, coalesce(?, x''), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING RETURNING seq;

-- name: number
INSERT INTO outbox_keys (partition_key, key_seq) VALUES (?, 1)
ON CONFLICT (partition_key) DO UPDATE SET key_seq = key_seq + 1 RETURNING key_seq;

-- The number was not used: the write lock is ours, so nobody has seen it.
-- name: unnumber
UPDATE outbox_keys SET key_seq = key_seq - 1 WHERE partition_key = ?;

-- Where a message was written, whether it is still in the log or only parked or dead.
-- name: written
SELECT seq FROM outbox_messages WHERE id = ?
UNION SELECT seq FROM outbox_parked WHERE id = ?
UNION SELECT seq FROM outbox_dead WHERE id = ?;

-- name: savepoint
SAVEPOINT outbox_write;

-- name: undo
ROLLBACK TO outbox_write;

-- name: release
RELEASE outbox_write;

-- A part of a transaction of InTx.
-- name: begin_part
SAVEPOINT outbox_part;

-- name: undo_part
ROLLBACK TO outbox_part;

-- name: end_part
RELEASE outbox_part;
