-- The statements of a relay's session.

-- name: now
SELECT :now;

-- Another relay that serves a sink, where one of the two does not share it.
-- name: held_by
SELECT id, name, host, pid, leased_until, lease FROM outbox_relays
WHERE id <> ?1 AND EXISTS (SELECT 1 FROM json_each(sinks) WHERE value = ?2) AND (no_leasing OR ?3)
ORDER BY leased_until DESC;

-- Who has a name, or an id.
-- name: holder
SELECT id, name, host, pid, leased_until, lease, EXISTS (SELECT 1 FROM json_each(sinks) WHERE value = ?3)
FROM outbox_relays WHERE name = ?1 OR id = ?2 ORDER BY id = ?2 DESC;

-- SQLite's clock stands up to a millisecond behind: a lease ends one later, so not before its owner thinks.
-- name: register
INSERT INTO outbox_relays (id, name, sinks, lease, host, pid, version, settings, no_leasing, started_at, heartbeat_at, leased_until)
VALUES (?1, ?2, json_array(?3), ?4, ?5, ?6, ?7, json_object(?3, ?8), ?9, :now, :now, :now + 1000 + ?4);

-- name: add_sink
UPDATE outbox_relays SET sinks = json_insert(sinks, '$[#]', ?2), settings = json_patch(settings, json_object(?2, ?3)) WHERE id = ?1;

-- Notes what a sink takes; where it is new it starts after what is committed now (?4), or with what was created at ?5 or
-- later, or at the beginning.
-- name: sink
INSERT INTO outbox_sinks (name, topics, exclude, start_seq)
SELECT ?1, ?2, ?3, CASE WHEN NOT ?4 AND ?5 IS NULL THEN 0
                        WHEN NOT ?4 AND EXISTS (SELECT 1 FROM outbox_messages WHERE created_at >= ?5)
                            THEN (SELECT min(seq) - 1 FROM outbox_messages WHERE created_at >= ?5)
                        ELSE coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0) END
WHERE true
ON CONFLICT (name) DO UPDATE SET seen_at = :now, topics = ?2, exclude = ?3;

-- name: partition
INSERT INTO outbox_partitions (sink, seq) SELECT name, start_seq FROM outbox_sinks WHERE name = ?1 ON CONFLICT DO NOTHING;

-- name: joined
UPDATE outbox_partitions SET settled_at = :now WHERE sink = ?1;

-- Where a relay stands on a sink: one row if it is registered, none if another one has taken it over.
-- name: look
SELECT n.now, r.leased_until, p.relay IS r.id AS held, p.relay IS NOT NULL AS owned, p.epoch, p.no, p.seq,
       (SELECT count(*) FROM outbox_relays o
        WHERE o.leased_until > n.now AND EXISTS (SELECT 1 FROM json_each(o.sinks) WHERE value = ?2)),
       coalesce((SELECT min(leased_until) FROM outbox_relays o WHERE o.id <> r.id), 0),
       EXISTS (SELECT 1 FROM outbox_relays o
               WHERE o.id <> r.id AND (o.leased_until <= n.now OR o.leased_until > n.now + 2 * o.lease)),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0),
       EXISTS (SELECT 1 FROM outbox_relays o WHERE o.id = p.relay AND o.id <> r.id AND o.heartbeat_at > r.started_at)
FROM (SELECT :now AS now) n
JOIN outbox_relays r ON r.id = ?1 AND EXISTS (SELECT 1 FROM json_each(r.sinks) WHERE value = ?2)
JOIN outbox_partitions p ON p.sink = ?2;

-- name: beat
UPDATE outbox_relays SET heartbeat_at = :now, leased_until = :now + 1000 + lease WHERE id = ?1;

-- Relays whose lease is over, or that the clock of the machine has left far in its future.
-- name: free_expired
UPDATE outbox_partitions SET relay = NULL, freed_at = :now, no = no + 1
WHERE relay IN (SELECT id FROM outbox_relays WHERE id <> ?1 AND (leased_until <= :now OR leased_until > :now + 2 * lease));

-- name: remove_expired
DELETE FROM outbox_relays WHERE id <> ?1 AND (leased_until <= :now OR leased_until > :now + 2 * lease);

-- name: free_relay
UPDATE outbox_partitions SET relay = NULL, freed_at = :now, no = no + 1 WHERE relay = ?1;

-- name: remove_relay
DELETE FROM outbox_relays WHERE id = ?1;

-- name: claim
UPDATE outbox_partitions SET relay = ?1, epoch = epoch + 1, no = no + 1, freed_at = NULL
WHERE sink = ?2 AND relay IS NULL RETURNING epoch, no, seq;

-- name: give_back
UPDATE outbox_partitions SET relay = NULL, freed_at = :now, no = no + 1 WHERE sink = ?2 AND relay = ?1;

-- A relay leaves a sink; without any it is gone.
-- name: leave
UPDATE outbox_relays SET sinks = (SELECT json_group_array(value) FROM json_each(sinks) WHERE value <> ?2),
    settings = json_patch(settings, json_object(?2, NULL)) WHERE id = ?1;

-- name: gone
DELETE FROM outbox_relays WHERE id = ?1 AND json_array_length(sinks) = 0;

-- What was read and is not taken is passed for good, without a settle.
-- name: pass
UPDATE outbox_partitions SET seq = max(seq, ?3) WHERE sink = ?2 AND relay = ?1;

-- name: data_version
PRAGMA data_version;

-- Which messages come next, for a sink that does not take them all.
-- name: topics
SELECT seq, topic FROM outbox_messages WHERE seq > ?1 ORDER BY seq LIMIT ?2;

-- The next messages. A key is blocked by parked messages (scheduled ones not yet due apart) and by a blocking dead letter.
-- name: page
SELECT
--:record
    , m.partition_key <> '' AND (
--:blocked
    )
FROM outbox_messages m WHERE m.seq > ?2 ORDER BY m.seq LIMIT ?3;

-- The same of messages that were chosen: a JSON array of their numbers.
-- name: chosen
SELECT
--:record
    , m.partition_key <> '' AND (
--:blocked
    )
FROM json_each(?2) chosen JOIN outbox_messages m ON m.seq = chosen.value ORDER BY m.seq LIMIT ?3;

-- name: blocked
        EXISTS (SELECT 1 FROM outbox_parked k WHERE k.sink = ?1 AND k.partition_key = m.partition_key AND k.reason <> 'scheduled')
        OR EXISTS (SELECT 1 FROM outbox_parked k
                   WHERE k.sink = ?1 AND k.partition_key = m.partition_key AND k.due_at IS NOT NULL AND k.due_at <= ?4)
        OR EXISTS (SELECT 1 FROM outbox_dead d WHERE d.sink = ?1 AND d.partition_key = m.partition_key AND d.blocks)

-- Scheduled messages that are due and find others of their key waiting go behind those.
-- name: joining
SELECT EXISTS (
    SELECT 1 FROM outbox_parked m
    WHERE m.sink = ?1 AND m.due_at IS NOT NULL AND m.due_at <= :now AND m.reason = 'scheduled' AND m.partition_key <> ''
      AND (EXISTS (SELECT 1 FROM outbox_parked k WHERE k.sink = ?1 AND k.partition_key = m.partition_key AND k.reason <> 'scheduled')
           OR EXISTS (SELECT 1 FROM outbox_dead d WHERE d.sink = ?1 AND d.partition_key = m.partition_key AND d.blocks)));

-- name: join_line
UPDATE outbox_parked AS m SET reason = 'behind', due_at = NULL,
    place = 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0)
WHERE m.sink = ?1 AND m.due_at IS NOT NULL AND m.due_at <= :now AND m.reason = 'scheduled' AND m.partition_key <> ''
  AND (EXISTS (SELECT 1 FROM outbox_parked k WHERE k.sink = ?1 AND k.partition_key = m.partition_key AND k.reason <> 'scheduled')
       OR EXISTS (SELECT 1 FROM outbox_dead d WHERE d.sink = ?1 AND d.partition_key = m.partition_key AND d.blocks));

-- name: heads
SELECT
--:record
    , m.place, m.reason, m.attempts, m.attempts_before, m.due_at
FROM outbox_parked m WHERE m.sink = ?1 AND m.due_at IS NOT NULL AND m.due_at <= ?2 ORDER BY m.due_at, m.place, m.seq;

-- name: next_due
SELECT min(at) FROM (
    SELECT min(due_at) AS at FROM outbox_parked WHERE sink = ?1 AND due_at > ?2 AND due_at < 9223372036854775807
    UNION ALL SELECT min(expires_at) FROM outbox_pauses WHERE sink = ?1 AND expires_at > ?2);

-- What waited for pauses that have ended.
-- name: released
SELECT
--:record
    , m.place, m.reason, m.attempts, m.attempts_before, p.expires_at
FROM outbox_pauses p JOIN outbox_parked m ON m.pause = p.id AND m.due_at = 9223372036854775807
WHERE p.sink = ?1 AND p.expires_at <= ?2 LIMIT ?3;

-- Whether a pause that has ended holds nothing any more.
-- name: sweepable
SELECT EXISTS (SELECT 1 FROM outbox_pauses p WHERE p.sink = ?1 AND p.expires_at <= ?2
               AND NOT EXISTS (SELECT 1 FROM outbox_parked m WHERE m.pause = p.id AND m.due_at = 9223372036854775807));

-- name: is_paused
SELECT EXISTS (SELECT 1 FROM outbox_pauses WHERE id = ?2 AND sink = ?1 AND (expires_at IS NULL OR expires_at > :now));

-- name: followers
SELECT
--:record
    , m.place, m.reason, m.attempts, m.attempts_before
FROM outbox_parked m
WHERE m.sink = ?1 AND m.partition_key = ?2 AND m.reason <> 'scheduled' AND (m.place, m.seq) > (?3, ?4)
  AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.sink = ?1 AND d.partition_key = ?2 AND d.blocks)
ORDER BY m.place, m.seq LIMIT ?5;

-- Keeps how far the sink had got by its last settle, where that was in a minute that is over and it says something new.
-- name: progress
INSERT INTO outbox_progress (sink, minute, count, published, seq, settled_at)
SELECT p.sink, p.settled_at / 60000000 * 60000000, p.published - coalesce(b.published, 0), p.published, p.seq, p.settled_at
FROM outbox_partitions p
LEFT JOIN outbox_progress b ON b.sink = p.sink AND b.minute = (SELECT max(minute) FROM outbox_progress WHERE sink = p.sink)
WHERE p.sink = ?1 AND p.settled_at / 60000000 < :now / 60000000
  AND (p.published, p.seq) IS NOT (coalesce(b.published, 0), coalesce(b.seq, 0))
ON CONFLICT DO NOTHING;

-- Rows that are older than ?1 microseconds go; the newest of a sink stays: the next one counts from there.
-- name: forget_progress
DELETE FROM outbox_progress
WHERE settled_at < :now - ?1 AND minute < (SELECT max(n.minute) FROM outbox_progress n WHERE n.sink = outbox_progress.sink);

-- The fence: whoever was overtaken, or does not know what became of its last settle, changes no row.
-- name: settle
UPDATE outbox_partitions SET no = no + 1, seq = max(seq, ?5), published = published + ?6, settled_at = :now
WHERE sink = ?1 AND relay = ?2 AND epoch = ?3 AND no = ?4;

-- A message that came again after a crash, and has its outcome.
-- name: has_outcome
SELECT EXISTS (SELECT 1 FROM outbox_parked WHERE id = ?2 AND sink = ?1) OR EXISTS (SELECT 1 FROM outbox_dead WHERE id = ?2 AND sink = ?1)
    OR EXISTS (SELECT 1 FROM outbox_audit a JOIN outbox_sinks s ON s.name = a.sink
               WHERE a.message_id = ?2 AND a.sink = ?1 AND a.action = 'discard' AND a.at > s.created_at)
    OR NOT EXISTS (SELECT 1 FROM outbox_messages WHERE seq = ?3 AND id = ?2);

-- name: is_parked
SELECT EXISTS (SELECT 1 FROM outbox_parked WHERE id = ?2 AND sink = ?1);

-- name: attempt
INSERT INTO outbox_attempts (sink, id, attempt, relay, outcome, code, error, duration) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING;

-- name: position
INSERT INTO outbox_positions (sink, id, position) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: park
INSERT INTO outbox_parked (sink, place, reason, attempts, pause, due_at, first_failure, last_failure, last_code, last_error,
--:copied
    )
SELECT ?1, seq, ?3, ?4, ?9,
       CASE WHEN ?9 IS NOT NULL THEN 9223372036854775807 WHEN ?3 = 'retry' THEN :now + ?5
            WHEN ?3 = 'scheduled' THEN coalesce(available_at, :now) WHEN ?3 = 'paused' OR partition_key = '' THEN :now END,
       CASE WHEN ?6 THEN :now END, CASE WHEN ?6 THEN :now END, ?7, ?8,
--:copied
FROM outbox_messages WHERE seq = ?2;

-- name: park_again
UPDATE outbox_parked SET reason = ?3, attempts = ?4, pause = ?9,
    due_at = CASE WHEN ?9 IS NOT NULL THEN 9223372036854775807 WHEN ?3 = 'retry' THEN :now + ?5
                  WHEN ?3 = 'scheduled' THEN coalesce(available_at, :now) WHEN ?3 = 'paused' OR partition_key = '' THEN :now END,
    first_failure = CASE WHEN ?6 THEN coalesce(first_failure, :now) ELSE first_failure END,
    last_failure = CASE WHEN ?6 THEN :now ELSE last_failure END,
    last_code = coalesce(nullif(?7, ''), last_code), last_error = coalesce(nullif(?8, ''), last_error)
WHERE id = ?2 AND sink = ?1;

-- name: bury
INSERT INTO outbox_dead (sink, place, blocks, code, error, attempts, first_failure, last_failure, relay,
--:copied
    )
SELECT ?1, seq, ?3 AND partition_key <> '', ?4, ?5, ?6, :now, :now, ?7,
--:copied
FROM outbox_messages WHERE seq = ?2;

-- name: bury_parked
INSERT INTO outbox_dead (sink, place, blocks, code, error, attempts, first_failure, last_failure, relay,
--:copied
    )
SELECT ?1, place, ?3 AND partition_key <> '', ?4, ?5, ?6, coalesce(first_failure, :now), :now, ?7,
--:copied
FROM outbox_parked WHERE id = ?2 AND sink = ?1;

-- name: unpark
DELETE FROM outbox_parked WHERE id = ?2 AND sink = ?1;
