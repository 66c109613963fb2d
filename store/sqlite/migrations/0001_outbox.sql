-- locks: the file's write lock, for a moment: it makes new tables
--
-- The outbox: the log of messages, who has read how far, and the exceptions.
--
-- In these files outbox_x stands for prefix_x, and :now for SQLite's clock. Times are microseconds since 1970 in UTC
-- (datetime(created_at / 1000000, 'unixepoch') shows one); SQLite's clock has milliseconds. Everything here works from
-- SQLite 3.37 on, which is what STRICT tables ask for: older programs cannot open the file's schema.
--
-- One connection writes at a time, and numbers are given while it holds the write lock: the order of seq is the order of
-- commits. So a sink's cursor is one number, and there is one partition.

-- What is true of this outbox as a whole: schema (version), partitions, lineage, floor, retention (of published messages, in
-- microseconds, as the relay has it that looks after it).
CREATE TABLE outbox_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO outbox_meta (name, value) VALUES ('partitions', '1'), ('lineage', '1'), ('floor', '0'), ('retention', '');

-- The log. Rows are inserted once and never updated; retention deletes old ones. AUTOINCREMENT: a number whose row was
-- deleted is never given again, or cursors would pass over the row that gets it.
CREATE TABLE outbox_messages (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT CONSTRAINT outbox_messages_seq_check CHECK (seq > 0),
    partition_id   INTEGER NOT NULL GENERATED ALWAYS AS (0) VIRTUAL,   -- as on other databases
    -- A UUIDv7 of this moment (RFC 9562), as text that one can read and compare in a shell.
    id             TEXT    NOT NULL DEFAULT (lower(
                       substr(printf('%012x', :now / 1000), 1, 8) || '-' || substr(printf('%012x', :now / 1000), 9)
                       || '-7' || substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (random() & 3), 1)
                       || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
                   CONSTRAINT outbox_messages_id_check CHECK (
                       id GLOB '????????-????-????-????-????????????' AND length(replace(id, '-', '')) = 32
                       AND id NOT GLOB '*[^0-9a-f-]*' AND id <> '00000000-0000-0000-0000-000000000000'),
    topic          TEXT    NOT NULL CONSTRAINT outbox_messages_topic_check CHECK (topic <> '' AND length(CAST(topic AS BLOB)) <= 255),
    partition_key  TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_partition_key_check CHECK (length(CAST(partition_key AS BLOB)) <= 255),
    type           TEXT    NOT NULL CONSTRAINT outbox_messages_type_check CHECK (type <> '' AND length(CAST(type AS BLOB)) <= 500),
    -- Bytes, or a text, which goes out as its UTF-8: '{"a": 1}' in a shell is a payload.
    payload        ANY     NOT NULL CONSTRAINT outbox_messages_payload_check CHECK (typeof(payload) IN ('blob', 'text') AND length(CAST(payload AS BLOB)) <= 1048576),
    content_type   TEXT    NOT NULL DEFAULT 'application/octet-stream' CONSTRAINT outbox_messages_content_type_check CHECK (length(CAST(content_type AS BLOB)) <= 255),
    headers        TEXT    NOT NULL DEFAULT '{}',                       -- a JSON object of strings; checked by a trigger
    scope          TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_scope_check CHECK (length(CAST(scope AS BLOB)) <= 64),
    correlation_id TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_correlation_id_check CHECK (length(CAST(correlation_id AS BLOB)) <= 255),
    causation_id   TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_causation_id_check CHECK (length(CAST(causation_id AS BLOB)) <= 255),
    aggregate_type TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_aggregate_type_check CHECK (length(CAST(aggregate_type AS BLOB)) <= 255),
    aggregate_id   TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_aggregate_id_check CHECK (length(CAST(aggregate_id AS BLOB)) <= 255),
    event_id       TEXT    NOT NULL DEFAULT '' CONSTRAINT outbox_messages_event_id_check CHECK (length(CAST(event_id AS BLOB)) <= 255),
    key_seq        INTEGER NOT NULL DEFAULT 0 CONSTRAINT outbox_messages_key_seq_check CHECK (key_seq >= 0),     -- gapless within the key; 0: not serialised
    -- Years 1 to 9999, which RFC 3339 can say.
    created_at     INTEGER NOT NULL DEFAULT (:now) CONSTRAINT outbox_messages_created_at_check CHECK (created_at >= -62135596800000000 AND created_at < 253402300800000000),
    available_at   INTEGER CONSTRAINT outbox_messages_available_at_check CHECK (available_at >= -62135596800000000 AND available_at < 253402300800000000),
    -- Brokers and HTTP carry these as header lines, where a line break would end the header. GLOB stops at a NUL, so that
    -- is looked for by itself.
    CONSTRAINT outbox_messages_control_check CHECK (
        (topic || type || partition_key || content_type || scope || correlation_id || causation_id || aggregate_type
            || aggregate_id || event_id) NOT GLOB ('*[' || char(1) || '-' || char(31) || char(127) || ']*')
        AND instr(CAST(topic || type || partition_key || content_type || scope || correlation_id || causation_id
            || aggregate_type || aggregate_id || event_id AS BLOB), x'00') = 0)
) STRICT;
CREATE UNIQUE INDEX outbox_messages_id ON outbox_messages (id);

-- A named destination. topics and exclude are JSON arrays of patterns; what was there up to start_seq when it was made is
-- none of its business.
CREATE TABLE outbox_sinks (
    name       TEXT    NOT NULL PRIMARY KEY,
    topics     TEXT    NOT NULL DEFAULT '[]',
    exclude    TEXT    NOT NULL DEFAULT '[]',
    start_seq  INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL DEFAULT (:now),
    seen_at    INTEGER NOT NULL DEFAULT (:now)
) STRICT, WITHOUT ROWID;

-- The running relays. sinks is a JSON array of names, settings an object with a line for each.
CREATE TABLE outbox_relays (
    id           TEXT    NOT NULL PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE,
    sinks        TEXT    NOT NULL,
    settings     TEXT    NOT NULL DEFAULT '{}',
    draining     INTEGER NOT NULL DEFAULT 0,
    no_leasing   INTEGER NOT NULL DEFAULT 0,
    lease        INTEGER NOT NULL,
    host         TEXT    NOT NULL DEFAULT '',
    pid          INTEGER NOT NULL DEFAULT 0,
    version      TEXT    NOT NULL DEFAULT '',
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    leased_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who holds a sink, and its cursor: every message up to seq has an outcome, or is not taken. no grows with each settle and each change of
-- hands: whoever comes with an older one is refused.
CREATE TABLE outbox_partitions (
    sink         TEXT    NOT NULL REFERENCES outbox_sinks (name),
    partition_id INTEGER NOT NULL DEFAULT 0 CHECK (partition_id = 0),
    relay        TEXT    REFERENCES outbox_relays (id),
    epoch        INTEGER NOT NULL DEFAULT 0,
    no           INTEGER NOT NULL DEFAULT 0,
    seq          INTEGER NOT NULL DEFAULT 0,
    published    INTEGER NOT NULL DEFAULT 0,
    settled_at   INTEGER,
    freed_at     INTEGER,
    PRIMARY KEY (sink, partition_id)
) STRICT, WITHOUT ROWID;

-- A message that left the fast path: a full copy. place is seq, but for a scheduled message that found others waiting.
-- A key has exactly one row with due_at, its head, unless a blocking dead letter stands before it (scheduled rows not
-- yet due apart). Rows without a key each have their own. What waits for the end of a pause has due_at 9223372036854775807:
-- it is due when that pause's expires_at is over, which is looked at there.
CREATE TABLE outbox_parked (
    sink            TEXT    NOT NULL,
    partition_id    INTEGER NOT NULL DEFAULT 0,
    partition_key   TEXT    NOT NULL,
    place           INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    id              TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    payload         ANY     NOT NULL,
    content_type    TEXT    NOT NULL,
    headers         TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    correlation_id  TEXT    NOT NULL,
    causation_id    TEXT    NOT NULL,
    aggregate_type  TEXT    NOT NULL,
    aggregate_id    TEXT    NOT NULL,
    event_id        TEXT    NOT NULL,
    key_seq         INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    available_at    INTEGER,
    reason          TEXT    NOT NULL CHECK (reason IN ('retry', 'scheduled', 'behind', 'paused')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    attempts_before INTEGER NOT NULL DEFAULT 0,     -- of them before the last requeue: outside the budget
    due_at          INTEGER,
    parked_at       INTEGER NOT NULL DEFAULT (:now),
    first_failure   INTEGER,
    last_failure    INTEGER,
    last_code       TEXT    NOT NULL DEFAULT '',
    last_error      TEXT    NOT NULL DEFAULT '' CHECK (length(CAST(last_error AS BLOB)) <= 2048),
    pause           INTEGER                         -- with that due_at: outbox_pauses.id
) STRICT;
CREATE UNIQUE INDEX outbox_parked_id ON outbox_parked (id, sink);       -- each insert into the log asks by id alone
CREATE INDEX outbox_parked_due ON outbox_parked (sink, due_at, place, seq) WHERE due_at IS NOT NULL;
-- The front of a key's line, past any number of scheduled rows; and the rows with due_at of a key, past any number behind.
CREATE INDEX outbox_parked_line ON outbox_parked (sink, partition_key, place, seq) WHERE reason <> 'scheduled';
CREATE INDEX outbox_parked_key_due ON outbox_parked (sink, partition_key, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_parked_pause ON outbox_parked (pause) WHERE due_at = 9223372036854775807;
CREATE INDEX outbox_parked_newest ON outbox_parked (seq);               -- for people's lists

-- A dead letter: a full copy, kept until somebody requeues or discards it.
CREATE TABLE outbox_dead (
    sink           TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    partition_id   INTEGER NOT NULL DEFAULT 0,
    partition_key  TEXT    NOT NULL,
    place          INTEGER NOT NULL,
    seq            INTEGER NOT NULL,
    topic          TEXT    NOT NULL,
    type           TEXT    NOT NULL,
    payload        ANY     NOT NULL,
    content_type   TEXT    NOT NULL,
    headers        TEXT    NOT NULL,
    scope          TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    causation_id   TEXT    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    event_id       TEXT    NOT NULL,
    key_seq        INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    available_at   INTEGER,
    blocks         INTEGER NOT NULL,                -- its key waits for it; never with an empty key
    code           TEXT    NOT NULL,
    error          TEXT    NOT NULL CHECK (length(CAST(error AS BLOB)) <= 2048),
    attempts       INTEGER NOT NULL,
    first_failure  INTEGER NOT NULL,
    last_failure   INTEGER NOT NULL,
    relay          TEXT    NOT NULL,
    CHECK (NOT (blocks AND partition_key = ''))
) STRICT;
CREATE UNIQUE INDEX outbox_dead_id ON outbox_dead (id, sink);           -- each insert into the log asks by id alone
CREATE INDEX outbox_dead_blocks ON outbox_dead (sink, partition_key) WHERE blocks;
CREATE INDEX outbox_dead_newest ON outbox_dead (seq, sink);

-- One failed attempt. duration in microseconds.
CREATE TABLE outbox_attempts (
    sink     TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    attempt  INTEGER NOT NULL,
    at       INTEGER NOT NULL DEFAULT (:now),
    relay    TEXT    NOT NULL,
    outcome  TEXT    NOT NULL,
    code     TEXT    NOT NULL,
    error    TEXT    NOT NULL CHECK (length(CAST(error AS BLOB)) <= 2048),
    duration INTEGER NOT NULL,
    PRIMARY KEY (sink, id, attempt)
) STRICT, WITHOUT ROWID;

-- The broker's position of a message, only where the sink records positions.
CREATE TABLE outbox_positions (
    sink     TEXT NOT NULL,
    id       TEXT NOT NULL,
    position TEXT NOT NULL,
    PRIMARY KEY (sink, id)
) STRICT, WITHOUT ROWID;

-- How far a sink had got at the end of a minute in which it moved. count is what it published since its row before.
CREATE TABLE outbox_progress (
    sink       TEXT    NOT NULL,
    minute     INTEGER NOT NULL,    -- of settled_at
    count      INTEGER NOT NULL,
    published  INTEGER NOT NULL,    -- in all
    seq        INTEGER NOT NULL,
    settled_at INTEGER NOT NULL,
    PRIMARY KEY (sink, minute)
) STRICT, WITHOUT ROWID;

-- What people hold back: a sink (then name is empty), the topics that a pattern selects, or a key. A pause whose expires_at
-- is over has ended; its row stays until everything that it held was taken up.
CREATE TABLE outbox_pauses (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    sink       TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('sink', 'topic', 'key')),
    name       TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) <= 255),
    reason     TEXT    NOT NULL CHECK (length(CAST(reason AS BLOB)) <= 2048),
    actor      TEXT    NOT NULL,
    created_at INTEGER NOT NULL DEFAULT (:now),
    expires_at INTEGER CHECK (expires_at < 253402300800000000),
    CHECK ((kind = 'sink') = (name = '')),
    UNIQUE (sink, kind, name)
) STRICT;

-- One act of a person; append-only.
CREATE TABLE outbox_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL DEFAULT (:now),
    actor      TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    sink       TEXT    NOT NULL,
    message_id TEXT,
    reason     TEXT    NOT NULL DEFAULT '',
    detail     TEXT    NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX outbox_audit_message ON outbox_audit (message_id) WHERE message_id IS NOT NULL;

-- The counter of a key that writers serialise; retention never touches it.
CREATE TABLE outbox_keys (
    partition_key TEXT    NOT NULL PRIMARY KEY,
    key_seq       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How far the log went at some times: what has a number up to seq was written before. Retention goes by it, because created_at
-- is the producer's to choose.
CREATE TABLE outbox_marks (
    at  INTEGER NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT;

-- After the row is stored, because only then its default id is known. An id is taken while its message is parked or dead,
-- which may outlive its row in the log. A number that somebody chose must not lie below what was given out already: no
-- cursor would see the row.
CREATE TRIGGER outbox_messages_written AFTER INSERT ON outbox_messages BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: outbox_messages.id')
    WHERE EXISTS (SELECT 1 FROM outbox_parked WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM outbox_dead WHERE id = NEW.id);
    SELECT RAISE(ABORT, 'outbox_messages.seq lies below numbers that were given already: leave it out of the INSERT')
    WHERE NEW.seq < (SELECT max(seq) FROM outbox_messages) OR NEW.seq <= (SELECT max(seq) FROM outbox_partitions);
END;

-- The rules of outbox.Rules for headers, for producers that do not have it.
CREATE TRIGGER outbox_messages_headers AFTER INSERT ON outbox_messages WHEN NEW.headers <> '{}' BEGIN
    SELECT RAISE(ABORT, 'CHECK constraint failed: outbox_messages.headers is a JSON object')
    WHERE NOT json_valid(NEW.headers) OR json_type(NEW.headers) <> 'object';
    -- Some versions end a value there and show no more of it; a backslash that is itself escaped is none.
    SELECT RAISE(ABORT, 'CHECK constraint failed: outbox_messages.headers has a name or value that is not allowed')
    WHERE instr(replace(NEW.headers, '\\', ''), '\u0000') > 0;
    SELECT RAISE(ABORT, 'CHECK constraint failed: outbox_messages.headers has a name or value that is not allowed')
    FROM json_each(NEW.headers) h
    WHERE h.type <> 'text' OR length(CAST(h.key AS BLOB)) NOT BETWEEN 1 AND 128
       OR h.key GLOB '*[^]A-Za-z0-9!#$%&''*+.^_|~-]*' OR instr(h.key, ']') > 0
       OR lower(h.key) GLOB 'onward-*' OR lower(h.key) GLOB 'ce[-_]*' OR lower(h.key) GLOB 'cloudevents*'
       OR lower(h.key) GLOB 'nats-*' OR lower(h.key) GLOB 'webhook-*' OR lower(h.key) = 'content-type'
       OR h.value GLOB ('*[' || char(1) || '-' || char(8) || char(10) || '-' || char(31) || char(127) || ']*')
       OR instr(CAST(h.value AS BLOB), x'00') > 0;
    SELECT RAISE(ABORT, 'CHECK constraint failed: outbox_messages.headers has more than 8 KiB')
    WHERE (SELECT sum(length(CAST(key AS BLOB)) + length(CAST(value AS BLOB))) FROM json_each(NEW.headers)) > 8192;
END;

CREATE TRIGGER outbox_messages_fixed BEFORE UPDATE ON outbox_messages BEGIN
    SELECT RAISE(ABORT, 'UPDATE of outbox_messages is refused: its rows never change once written');
END;
CREATE TRIGGER outbox_audit_fixed BEFORE UPDATE ON outbox_audit BEGIN
    SELECT RAISE(ABORT, 'UPDATE of outbox_audit is refused: its rows never change once written');
END;
CREATE TRIGGER outbox_audit_kept BEFORE DELETE ON outbox_audit BEGIN
    SELECT RAISE(ABORT, 'DELETE of outbox_audit is refused: its rows never change once written');
END;

-- A sink at a glance, for the sqlite3 shell. Counting stops at 100,000; a sink that does not take every topic may pass over
-- some of its backlog.
CREATE VIEW outbox_status AS
SELECT p.sink,
       (SELECT count(*) FROM (SELECT 1 FROM outbox_messages m WHERE m.seq > p.seq LIMIT 100000)) AS backlog,
       (SELECT (:now - m.created_at) / 1000000.0 FROM outbox_messages m WHERE m.seq > p.seq ORDER BY m.seq LIMIT 1) AS lag_seconds,
       (SELECT count(*) FROM (SELECT 1 FROM outbox_parked k WHERE k.sink = p.sink LIMIT 100000)) AS parked,
       (SELECT count(*) FROM (SELECT 1 FROM outbox_dead d WHERE d.sink = p.sink LIMIT 100000)) AS dead,
       p.published,
       (SELECT r.name FROM outbox_relays r WHERE r.id = p.relay) AS relay,
       datetime(p.settled_at / 1000000, 'unixepoch') AS last_settle
FROM outbox_partitions p;

-- What each sink has yet to publish: pending in the log, or parked. Of a sink that does not take every topic, also what it will
-- pass over.
CREATE VIEW outbox_pending AS
SELECT p.sink, 'pending' AS state, '' AS reason, m.seq, m.id, m.topic, m.partition_key, m.type, m.event_id, m.correlation_id, m.scope,
       datetime(m.created_at / 1000000, 'unixepoch') AS created_at, 0 AS attempts, NULL AS due_at, '' AS last_code, '' AS last_error
FROM outbox_partitions p JOIN outbox_messages m ON m.seq > p.seq
WHERE NOT EXISTS (SELECT 1 FROM outbox_parked k WHERE k.id = m.id AND k.sink = p.sink)
  AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE d.id = m.id AND d.sink = p.sink)
  AND NOT EXISTS (SELECT 1 FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = p.sink AND a.action = 'discard')
UNION ALL
SELECT k.sink, 'parked', k.reason, k.seq, k.id, k.topic, k.partition_key, k.type, k.event_id, k.correlation_id, k.scope,
       datetime(k.created_at / 1000000, 'unixepoch'), k.attempts, datetime(k.due_at / 1000000, 'unixepoch'), k.last_code, k.last_error
FROM outbox_parked k;
