-- Retention: what no sink needs any more.

-- The oldest of the live relays looks after it.
-- name: retainer
SELECT coalesce((SELECT id FROM outbox_relays WHERE NOT draining AND leased_until > :now ORDER BY id LIMIT 1), '');

-- Up to which number every sink has passed, and messages were written longer ago than ?1 (0: all of them); nothing where there is no
-- sink. Numbers are given under the write lock, so what lies below a cursor was passed. A cursor above what was given belongs to
-- another file, and has passed nothing. Then: the first number in the log, the newest given, when that was last noted, now, and what
-- outbox_meta says of retention.
-- name: removable
SELECT CASE WHEN count(CASE WHEN p.seq <= q.top THEN 1 END) = count(*) THEN min(p.seq) ELSE 0 END,
       CASE WHEN ?1 = 0 THEN q.top ELSE coalesce((SELECT max(seq) FROM outbox_marks WHERE at <= :now - ?1), 0) END,
       coalesce((SELECT min(seq) FROM outbox_messages), 0), q.top,
       coalesce((SELECT max(at) FROM outbox_marks WHERE at <= :now), 0), :now,
       coalesce((SELECT value FROM outbox_meta WHERE name = 'retention'), '')
FROM (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0) AS top) q
LEFT JOIN outbox_sinks s ON true LEFT JOIN outbox_partitions p ON p.sink = s.name;

-- name: remove
DELETE FROM outbox_messages WHERE seq IN (SELECT seq FROM outbox_messages WHERE seq <= ?1 ORDER BY seq LIMIT ?2);

-- name: mark
INSERT INTO outbox_marks (at, seq) VALUES (:now, ?1) ON CONFLICT DO NOTHING;

-- Notes below the newest one that is old enough say nothing more.
-- name: unmark
DELETE FROM outbox_marks WHERE (seq, at) < (SELECT seq, at FROM outbox_marks WHERE at <= :now - ?1 ORDER BY seq DESC, at DESC LIMIT 1);

-- name: tell
UPDATE outbox_meta SET value = ?1 WHERE name = 'retention';

-- The next failed attempts, and positions. Of which is nothing left: no message, and no copy.
-- name: attempts_from
SELECT sink, id, attempt FROM outbox_attempts WHERE (sink, id, attempt) > (?1, ?2, ?3) ORDER BY sink, id, attempt LIMIT ?4;

-- name: positions_from
SELECT sink, id, ?3 FROM outbox_positions WHERE (sink, id) > (?1, ?2) ORDER BY sink, id LIMIT ?4;

-- name: forget_attempts_to
DELETE FROM outbox_attempts AS t WHERE (sink, id, attempt) > (?1, ?2, ?3) AND (sink, id, attempt) <= (?4, ?5, ?6)
    AND
--:orphan
    ;

-- name: forget_positions_to
DELETE FROM outbox_positions AS t WHERE (sink, id) > (?1, ?2) AND (sink, id) <= (?4, ?5) AND ?3 = ?6
    AND
--:orphan
    ;

-- name: orphan
    NOT EXISTS (SELECT 1 FROM outbox_messages m WHERE m.id = t.id)
    AND NOT EXISTS (SELECT 1 FROM outbox_parked k WHERE k.id = t.id AND k.sink = t.sink)
    AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.id = t.id AND d.sink = t.sink)

-- The next dead letters, and whether they died longer ago than ?2.
-- name: dead_from
SELECT rowid, last_failure < :now - ?2, sink, id, partition_key, code, topic, type, seq FROM outbox_dead WHERE rowid > ?1 ORDER BY rowid LIMIT ?3;

-- name: expire
DELETE FROM outbox_dead WHERE id = ?2 AND sink = ?1 AND last_failure < :now - ?3;

-- name: audit_expiry
INSERT INTO outbox_audit (actor, action, sink, message_id, reason, detail) VALUES ('retention', 'discard', ?1, ?2, ?3, ?4);
