-- What the statements share.

-- name: begin_read
BEGIN;

-- name: begin_write
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: copied
seq, partition_key, id, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
    aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at

-- name: record
m.seq, m.id, m.topic, m.partition_key, m.type, CAST(m.payload AS BLOB), m.content_type, m.headers, m.scope, m.correlation_id,
    m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at

-- name: info
SELECT sqlite_version(), (SELECT value FROM outbox_meta WHERE name = 'schema'),
       (SELECT value FROM outbox_meta WHERE name = 'partitions'), (SELECT value FROM outbox_meta WHERE name = 'lineage');

-- The head of a key's line, and whether a dead letter blocks the key.
-- name: line
SELECT k.rowid, k.due_at,
       EXISTS (SELECT 1 FROM outbox_dead d WHERE d.sink = ?1 AND d.partition_key = ?2 AND d.blocks)
FROM outbox_parked k WHERE k.sink = ?1 AND k.partition_key = ?2 AND k.reason <> 'scheduled' ORDER BY k.place, k.seq LIMIT 1;

-- name: promote
UPDATE outbox_parked SET due_at = :now WHERE rowid = ?1;

-- Rows of a line that have a due time and are not its head.
-- name: demote
UPDATE outbox_parked SET due_at = NULL
WHERE sink = ?1 AND partition_key = ?2 AND due_at IS NOT NULL AND reason <> 'scheduled' AND rowid <> ?3;

-- The pauses of a sink, or of all, that have not ended.
-- name: pauses
SELECT id, sink, kind, name, reason, actor, created_at, expires_at FROM outbox_pauses
WHERE (?1 = '' OR sink = ?1) AND (?2 = '' OR kind = ?2 AND name = ?3) AND (expires_at IS NULL OR expires_at > :now);

-- Pauses that have ended and hold nothing any more.
-- name: sweep_pauses
DELETE FROM outbox_pauses AS p
WHERE p.sink = ?1 AND p.expires_at <= :now
  AND NOT EXISTS (SELECT 1 FROM outbox_parked m WHERE m.pause = p.id AND m.due_at = 9223372036854775807);
