-- What people ask, and do.

-- name: now
SELECT :now;

-- name: sinks
SELECT name FROM outbox_sinks ORDER BY name;

-- name: partitions
SELECT p.sink, coalesce((SELECT name FROM outbox_relays WHERE id = p.relay), ''), p.epoch, p.seq, p.freed_at,
       (SELECT count(*) FROM (SELECT 1 FROM outbox_parked k WHERE k.sink = p.sink LIMIT 100000))
FROM outbox_partitions p WHERE ?1 = '' OR p.sink = ?1 ORDER BY p.sink;

-- name: relays
SELECT r.id, r.name, r.sinks, (SELECT count(*) FROM outbox_partitions p WHERE p.relay = r.id), r.draining, r.leased_until > :now,
       r.host, r.pid, r.version, r.started_at, r.heartbeat_at, r.leased_until, r.lease
FROM outbox_relays r ORDER BY r.name;

-- name: live
SELECT count(*) FROM outbox_relays WHERE leased_until > :now;

-- Counting stops at 100,000 each.
-- name: status
SELECT p.sink, s.topics, s.exclude, s.created_at, s.seen_at, p.relay IS NOT NULL, p.published,
       CASE WHEN EXISTS (SELECT 1 FROM outbox_relays r, json_each(r.sinks) WHERE value = p.sink) THEN p.settled_at
            ELSE max(coalesce(p.settled_at, p.freed_at), coalesce(p.freed_at, p.settled_at)) END,
       p.seq, (SELECT count(*) FROM (SELECT 1 FROM outbox_dead d WHERE d.sink = p.sink LIMIT 100001)),
       (SELECT coalesce(sum(m.n), 0) FROM
--:minutes_of
           m WHERE m.sink = p.sink AND m.minute >= :now / 60000000 * 60000000 - 300000000)
       / ((:now - :now / 60000000 * 60000000 + 300000000) / 1000000.0)
FROM outbox_partitions p JOIN outbox_sinks s ON s.name = p.sink ORDER BY p.sink;

-- name: serving
SELECT r.name, coalesce((SELECT value FROM json_each(r.settings) WHERE key = ?1), '')
FROM outbox_relays r WHERE r.leased_until > :now AND EXISTS (SELECT 1 FROM json_each(r.sinks) WHERE value = ?1) ORDER BY r.name;

-- What a cursor has not passed, by topic.
-- name: backlog
SELECT topic, count(*), min(created_at)
FROM (SELECT topic, created_at FROM outbox_messages WHERE seq > ?1 ORDER BY seq LIMIT 100001) GROUP BY topic;

-- For how long retention has waited for a sink: what its cursor has not passed is so much older than the retention.
-- name: held
SELECT :now - (SELECT created_at FROM outbox_messages WHERE seq > ?1 ORDER BY seq LIMIT 1) - CAST(value AS INTEGER)
FROM outbox_meta WHERE name = 'retention' AND value <> '';

-- name: recent
SELECT topic, count(*) FROM (SELECT topic FROM outbox_messages ORDER BY seq DESC LIMIT 100000) GROUP BY topic;

-- name: selections
SELECT topics, exclude FROM outbox_sinks;

-- name: parked_by_reason
SELECT reason, count(*) FROM (SELECT reason FROM outbox_parked WHERE sink = ?1 LIMIT 100001) GROUP BY reason;

-- name: blocked_keys
SELECT count(*) FROM (
    SELECT partition_key FROM outbox_parked
    WHERE sink = ?1 AND partition_key <> '' AND (reason <> 'scheduled' OR due_at <= :now)
    UNION SELECT partition_key FROM outbox_dead WHERE sink = ?1 AND blocks
    LIMIT 100001);

-- What a list reads at most: how many rows, and where it ends.
-- name: window
SELECT count(*), coalesce(min(seq), 0) FROM (SELECT seq FROM outbox_messages WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2);

-- name: fields
m.seq, m.id, m.topic, m.partition_key, m.type, NULL, m.content_type, m.headers, m.scope, m.correlation_id,
    m.causation_id, m.aggregate_type, m.aggregate_id, m.event_id, m.key_seq, m.created_at, m.available_at

-- name: filter
    m.seq < ?1 AND m.seq >= ?2
    AND (?4 = '' OR m.topic = ?4) AND (?5 = '' OR m.type = ?5) AND (?6 = '' OR m.partition_key = ?6)
    AND (?7 = '' OR m.event_id = ?7) AND (?8 = '' OR m.correlation_id = ?8) AND (?9 = '' OR m.scope = ?9)
    AND (?10 = '' OR m.id = ?10) AND (?11 IS NULL OR m.created_at >= ?11) AND (?12 IS NULL OR m.created_at < ?12)

-- name: list_log
SELECT
--:fields
    , length(CAST(m.payload AS BLOB))
FROM outbox_messages m WHERE
--:filter
ORDER BY m.seq DESC LIMIT ?3;

-- Messages that are parked or dead in some sink, each once.
-- name: list_exceptions
SELECT
--:fields
    , m.bytes
FROM (SELECT
--:copied
          , length(CAST(payload AS BLOB)) AS bytes FROM outbox_parked
      UNION SELECT
--:copied
          , length(CAST(payload AS BLOB)) AS bytes FROM outbox_dead) m WHERE
--:filter
ORDER BY m.seq DESC LIMIT ?3;

-- A message, from the log or from a copy.
-- name: message
SELECT
--:record
    , length(CAST(m.payload AS BLOB))
FROM (SELECT
--:copied
      FROM outbox_messages WHERE id = ?1
      UNION ALL SELECT
--:copied
      FROM outbox_parked WHERE id = ?1
      UNION ALL SELECT
--:copied
      FROM outbox_dead WHERE id = ?1) m LIMIT 1;

-- Where a message stands in one sink, or in each.
-- name: states
SELECT s.name, k.reason, k.attempts, nullif(k.due_at, 9223372036854775807), k.last_code, k.last_error, d.attempts, d.code, d.error,
       EXISTS (SELECT 1 FROM outbox_audit a
               WHERE a.message_id = ?1 AND a.sink = s.name AND a.action = 'discard' AND a.at > s.created_at),
       p.seq >= ?2, s.start_seq >= ?2, s.topics, s.exclude
FROM outbox_sinks s
JOIN outbox_partitions p ON p.sink = s.name
LEFT JOIN outbox_parked k ON k.id = ?1 AND k.sink = s.name
LEFT JOIN outbox_dead d ON d.id = ?1 AND d.sink = s.name
WHERE ?3 = '' OR s.name = ?3 ORDER BY s.name;

-- name: deadlist
SELECT
--:fields
    , length(CAST(m.payload AS BLOB)), m.sink, m.code, m.error, m.attempts, m.first_failure, m.last_failure, m.relay, m.blocks
FROM outbox_dead m
WHERE (m.seq, m.sink) < (?1, ?2)
    AND (?4 = '' OR m.topic = ?4) AND (?5 = '' OR m.type = ?5) AND (?6 = '' OR m.partition_key = ?6)
    AND (?7 = '' OR m.event_id = ?7) AND (?8 = '' OR m.correlation_id = ?8) AND (?9 = '' OR m.scope = ?9)
    AND (?10 = '' OR m.id = ?10) AND (?11 IS NULL OR m.last_failure >= ?11) AND (?12 IS NULL OR m.last_failure < ?12)
    AND (?13 = '' OR m.sink = ?13) AND (?14 = '' OR m.code = ?14) AND m.attempts >= ?15
ORDER BY m.seq DESC, m.sink DESC LIMIT ?3;

-- name: payload_and_behind
SELECT CAST(d.payload AS BLOB),
       CASE WHEN d.blocks THEN (SELECT count(*) FROM outbox_parked k WHERE k.sink = d.sink AND k.partition_key = d.partition_key) ELSE 0 END
FROM outbox_dead d WHERE d.id = ?2 AND d.sink = ?1;

-- name: attempts
SELECT at, relay, attempt, outcome, code, error, duration FROM outbox_attempts WHERE sink = ?1 AND id = ?2 ORDER BY attempt;

-- name: corpse
SELECT partition_key, code, seq, place, blocks FROM outbox_dead WHERE id = ?2 AND sink = ?1;

-- name: waiting
SELECT partition_key, last_code, seq, topic, type FROM outbox_parked WHERE id = ?2 AND sink = ?1
UNION ALL SELECT partition_key, code, seq, topic, type FROM outbox_dead WHERE id = ?2 AND sink = ?1;

-- name: exists_anywhere
SELECT EXISTS (SELECT 1 FROM outbox_messages WHERE id = ?1) OR EXISTS (SELECT 1 FROM outbox_parked WHERE id = ?1)
    OR EXISTS (SELECT 1 FROM outbox_dead WHERE id = ?1);

-- How many later messages of the key the sink has published, as far as the log still has them.
-- name: published_after
SELECT m.topic, count(*)
FROM outbox_messages m JOIN outbox_partitions p ON p.sink = ?1
WHERE m.partition_key = ?2 AND m.seq > ?3 AND m.seq <= p.seq
  AND NOT EXISTS (SELECT 1 FROM outbox_parked k WHERE k.id = m.id AND k.sink = ?1)
  AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.id = m.id AND d.sink = ?1)
  AND NOT EXISTS (SELECT 1 FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = ?1 AND a.action = 'discard')
GROUP BY m.topic;

-- name: selection
SELECT topics, exclude FROM outbox_sinks WHERE name = ?1;

-- name: server
SELECT r.name FROM outbox_relays r, json_each(r.sinks) WHERE value = ?1 AND r.leased_until > :now ORDER BY r.name LIMIT 1;

-- name: unserve
UPDATE outbox_relays SET sinks = (SELECT json_group_array(value) FROM json_each(sinks) WHERE value <> ?1),
    settings = json_patch(settings, json_object(?1, NULL))
WHERE EXISTS (SELECT 1 FROM json_each(sinks) WHERE value = ?1);

-- name: forget_partitions
DELETE FROM outbox_partitions WHERE sink = ?1;

-- name: forget_parked
DELETE FROM outbox_parked WHERE sink = ?1;

-- name: forget_dead
DELETE FROM outbox_dead WHERE sink = ?1;

-- name: forget_attempts
DELETE FROM outbox_attempts WHERE sink = ?1;

-- name: forget_positions
DELETE FROM outbox_positions WHERE sink = ?1;

-- name: forget_minutes
DELETE FROM outbox_progress WHERE sink = ?1;

-- name: forget_pauses
DELETE FROM outbox_pauses WHERE sink = ?1;

-- name: forget_sink
DELETE FROM outbox_sinks WHERE name = ?1;

-- name: revive
INSERT INTO outbox_parked (sink, place, reason, attempts, attempts_before, due_at, first_failure, last_failure, last_code, last_error,
--:copied
    )
SELECT sink, place, 'retry', attempts, attempts, :now, first_failure, last_failure, code, error,
--:copied
FROM outbox_dead WHERE id = ?2 AND sink = ?1;

-- name: remove_dead
DELETE FROM outbox_dead WHERE id = ?2 AND sink = ?1;

-- name: remove_parked
DELETE FROM outbox_parked WHERE id = ?2 AND sink = ?1;

-- name: audit
INSERT INTO outbox_audit (actor, action, sink, message_id, reason, detail) VALUES (?1, ?2, ?3, nullif(?4, ''), ?5, ?6);

-- name: other_pauses
SELECT count(*) FROM outbox_pauses
WHERE sink = ?1 AND (kind, name) <> (?2, ?3) AND (expires_at IS NULL OR expires_at > :now);

-- name: pause
INSERT INTO outbox_pauses (sink, kind, name, reason, actor, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (sink, kind, name) DO UPDATE SET reason = ?4, actor = ?5, created_at = :now, expires_at = ?6;

-- It touches nothing else: the relay looks for what a pause held that has ended.
-- name: resume
UPDATE outbox_pauses SET expires_at = :now
WHERE sink = ?1 AND kind = ?2 AND name = ?3 AND (expires_at IS NULL OR expires_at > :now);

-- Keys of the sink with something parked, or with a dead letter that blocks, after ?2: at most ?3. ?4: only those that wait for
-- more than the time of scheduled messages. Each branch goes from key to key along its index.
-- name: keys
WITH RECURSIVE
line(key) AS (
    SELECT (SELECT min(partition_key) FROM outbox_parked WHERE sink = ?1 AND reason <> 'scheduled' AND partition_key > ?2)
    UNION ALL
    SELECT (SELECT min(partition_key) FROM outbox_parked WHERE sink = ?1 AND reason <> 'scheduled' AND partition_key > line.key)
    FROM line WHERE line.key IS NOT NULL LIMIT ?3),
timed(key) AS (
    SELECT (SELECT min(partition_key) FROM outbox_parked WHERE NOT ?4 AND sink = ?1 AND due_at IS NOT NULL AND partition_key > ?2)
    UNION ALL
    SELECT (SELECT min(partition_key) FROM outbox_parked WHERE sink = ?1 AND due_at IS NOT NULL AND partition_key > timed.key)
    FROM timed WHERE timed.key IS NOT NULL LIMIT ?3),
dead(key) AS (
    SELECT (SELECT min(partition_key) FROM outbox_dead WHERE sink = ?1 AND blocks AND partition_key > ?2)
    UNION ALL
    SELECT (SELECT min(partition_key) FROM outbox_dead WHERE sink = ?1 AND blocks AND partition_key > dead.key)
    FROM dead WHERE dead.key IS NOT NULL LIMIT ?3)
SELECT key FROM (SELECT key FROM line UNION SELECT key FROM timed UNION SELECT key FROM dead)
WHERE key IS NOT NULL ORDER BY key LIMIT ?3;

-- How many of a key wait, those whose time is ahead, and dead letters that block it; counted up to ?3, and one more.
-- name: key_counts
SELECT (SELECT count(*) FROM (SELECT 1 FROM outbox_parked WHERE sink = ?1 AND partition_key = ?2 AND reason <> 'scheduled' LIMIT ?3 + 1))
       + (SELECT count(*) FROM (SELECT 1 FROM outbox_parked WHERE sink = ?1 AND partition_key = ?2 AND reason = 'scheduled'
                                AND due_at IS NOT NULL AND due_at <= :now LIMIT ?3 + 1)),
       (SELECT count(*) FROM (SELECT 1 FROM outbox_parked WHERE sink = ?1 AND partition_key = ?2 AND reason = 'scheduled'
                              AND due_at IS NOT NULL AND due_at > :now LIMIT ?3)),
       (SELECT count(*) FROM (SELECT 1 FROM outbox_dead WHERE sink = ?1 AND partition_key = ?2 AND blocks LIMIT ?3));

-- name: key_head
SELECT id, topic, reason, attempts, nullif(due_at, 9223372036854775807), last_code, last_error, created_at
FROM outbox_parked WHERE sink = ?1 AND partition_key = ?2 AND reason <> 'scheduled' ORDER BY place, seq LIMIT 1;

-- name: key_dead
SELECT id, topic, attempts, code, error, created_at
FROM outbox_dead WHERE sink = ?1 AND partition_key = ?2 AND blocks ORDER BY place LIMIT 1;

-- Whether the newest ?2 messages have a key.
-- name: key_known
SELECT EXISTS (SELECT 1 FROM (SELECT partition_key FROM outbox_messages ORDER BY seq DESC LIMIT ?2) WHERE partition_key = ?1);

-- Where a receipt's message is, what has its number, and the newest number.
-- name: receipt
SELECT coalesce((SELECT seq FROM outbox_messages WHERE id = ?1), (SELECT seq FROM outbox_parked WHERE id = ?1),
                (SELECT seq FROM outbox_dead WHERE id = ?1)),
       EXISTS (SELECT 1 FROM outbox_messages WHERE seq = ?2),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0);

-- name: topic
SELECT topic FROM outbox_messages WHERE id = ?1
UNION SELECT topic FROM outbox_parked WHERE id = ?1
UNION SELECT topic FROM outbox_dead WHERE id = ?1;

-- name: discarded
SELECT EXISTS (SELECT 1 FROM outbox_audit a JOIN outbox_sinks s ON s.name = a.sink
               WHERE a.message_id = ?2 AND a.sink = ?1 AND a.action = 'discard' AND a.at > s.created_at);

-- What each sink published in each minute: the last settle says what no row says yet.
-- name: minutes_of
(SELECT g.sink, g.minute, g.count AS n FROM outbox_progress g
 UNION ALL
 SELECT l.sink, l.settled_at / 60000000 * 60000000,
        l.published - coalesce((SELECT g.published FROM outbox_progress g WHERE g.sink = l.sink ORDER BY g.minute DESC LIMIT 1), 0)
 FROM outbox_partitions l WHERE l.settled_at IS NOT NULL)

-- name: minutes
SELECT m.minute, sum(m.n) FROM
--:minutes_of
    m WHERE m.sink = ?1 AND m.minute >= ?2
GROUP BY m.minute HAVING sum(m.n) > 0 ORDER BY m.minute;

-- The first settle that had passed a message.
-- name: published
SELECT f.sink, max(f.minute, s.created_at), min(f.settled_at)
FROM (SELECT sink, minute, settled_at FROM outbox_progress WHERE seq >= ?1
      UNION ALL
      SELECT sink, settled_at / 60000000 * 60000000, settled_at FROM outbox_partitions WHERE seq >= ?1 AND settled_at IS NOT NULL) f
JOIN outbox_sinks s ON s.name = f.sink
GROUP BY f.sink;
