-- locks: none that others could wait for: it makes new tables
--
-- The outbox: the log of messages, who has read how far, and the exceptions.
--
-- In these files outbox_x stands for the qualified object "schema".prefix_x, and :outbox_x for the bare name (indexes,
-- constraints), which PostgreSQL puts into its table's schema. :partitions is the number of partitions.
--
-- Vacuum: the defaults (a fifth of the table, or 50 rows) suit neither end. The log is large, so a fifth of it is hours of
-- rows: 0.01. Of the small hot tables each settle or heartbeat leaves a dead row and a handful live ones, so a share of the
-- live rows says nothing: a number, with no share and no delay. Whatever reads them walks over the dead rows in between.

-- What is true of this outbox as a whole: schema (version), partitions, hash; and of its numbering: lineage, floor, the server's
-- system_identifier, the token of its life (incarnation), when that last changed (incarnated), and what a rebase found (rebased); and the
-- retention of published messages, in microseconds, as the relay has it that looks after it.
CREATE TABLE outbox_meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO outbox_meta (name, value) VALUES
    ('partitions', ':partitions'),
    ('hash', 'sha256'),
    ('lineage', '1'),
    ('floor', '0'),
    ('retention', ''),
    ('incarnation', ''),
    ('incarnated', ''),
    ('rebased', '');

-- One number after the other: with a cache, a session would hand out old numbers later, and reorder its keys.
CREATE SEQUENCE outbox_messages_seq_seq AS bigint CACHE 1;

-- The mark of a relay that sleeps and wants to be told of the next commit (see outbox_wake). A sequence, because a mark must leave no
-- dead row, lock nobody, and be seen at once. Not unlogged, though a mark is then a write for the log: PostgreSQL 15 promotes a standby
-- with such a sequence as zeros, and every INSERT fails ("bad magic number in sequence").
CREATE SEQUENCE outbox_asleep AS bigint MINVALUE 0 START 0 CACHE 1;

-- The log. Rows are inserted once and never updated; retention deletes old ones. Transaction and number are set by a
-- trigger, whatever the producer sends.
CREATE TABLE outbox_messages (
    txid           xid8        NOT NULL,                            -- the transaction that wrote the row
    seq            bigint      NOT NULL,
    partition_id   int         NOT NULL GENERATED ALWAYS AS (
        ('x' || encode(substring(sha256(replace(coalesce(nullif(partition_key, ''), id::text), '\', '\\')::bytea) from 1 for 4), 'hex'))::bit(32)::int
            & (:partitions - 1)) STORED,
    id             uuid        NOT NULL                             -- default outbox_uuid7(), with the functions
                               CHECK (id <> '00000000-0000-0000-0000-000000000000'),
    topic          text        NOT NULL CHECK (topic <> '' AND octet_length(topic) <= 255),
    partition_key  text        NOT NULL DEFAULT '' CHECK (octet_length(partition_key) <= 255),
    type           text        NOT NULL CHECK (type <> '' AND octet_length(type) <= 500),
    payload        bytea       NOT NULL CHECK (octet_length(payload) <= 1048576),
    content_type   text        NOT NULL DEFAULT 'application/octet-stream' CHECK (octet_length(content_type) <= 255),
    headers        jsonb       NOT NULL DEFAULT '{}',               -- an object of strings; checked with the functions
    scope          text        NOT NULL DEFAULT '' CHECK (octet_length(scope) <= 64),
    correlation_id text        NOT NULL DEFAULT '' CHECK (octet_length(correlation_id) <= 255),
    causation_id   text        NOT NULL DEFAULT '' CHECK (octet_length(causation_id) <= 255),
    aggregate_type text        NOT NULL DEFAULT '' CHECK (octet_length(aggregate_type) <= 255),
    aggregate_id   text        NOT NULL DEFAULT '' CHECK (octet_length(aggregate_id) <= 255),
    event_id       text        NOT NULL DEFAULT '' CHECK (octet_length(event_id) <= 255),
    key_seq        bigint      NOT NULL DEFAULT 0 CHECK (key_seq >= 0), -- gapless within the key; 0: not serialised
    -- Infinity and years of five digits cannot be said in RFC 3339, which the wire and every client speak.
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
                               CHECK (created_at >= '0001-01-01 00:00+00' AND created_at < '10000-01-01 00:00+00'),
    available_at   timestamptz CHECK (available_at >= '0001-01-01 00:00+00' AND available_at < '10000-01-01 00:00+00'),
    -- Brokers and HTTP carry these as header lines, where a line break would end the header.
    CONSTRAINT :outbox_messages_control_check CHECK (
        (topic || type || partition_key || content_type || scope || correlation_id || causation_id
            || aggregate_type || aggregate_id || event_id) !~ '[\x01-\x1f\x7f]' COLLATE "C"),
    CONSTRAINT :outbox_messages_pkey PRIMARY KEY (partition_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.01);
ALTER SEQUENCE outbox_messages_seq_seq OWNED BY outbox_messages.seq;
ALTER SEQUENCE outbox_asleep OWNED BY outbox_messages.seq;
CREATE INDEX :outbox_messages_txid_seq ON outbox_messages (txid, seq);
CREATE UNIQUE INDEX :outbox_messages_id ON outbox_messages (id);

-- A named destination, and what it takes. takes and leaves are its patterns as regular expressions; empty: everything, and
-- nothing. What lay at or below start_seq and was visible in start_snapshot when it was made is none of its business.
CREATE TABLE outbox_sinks (
    name           text PRIMARY KEY,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    topics         text[]      NOT NULL DEFAULT '{}',
    exclude        text[]      NOT NULL DEFAULT '{}',
    takes          text        NOT NULL DEFAULT '',
    leaves         text        NOT NULL DEFAULT '',
    start_seq      bigint      NOT NULL DEFAULT 0,
    start_snapshot pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    published      bigint      NOT NULL DEFAULT 0   -- by relays that have left; the running ones count in outbox_cursors
);

-- The running relays. One update every heartbeat renews everything that a relay holds.
CREATE TABLE outbox_relays (
    id           uuid PRIMARY KEY,
    name         text        NOT NULL CONSTRAINT :outbox_relays_name UNIQUE,
    sinks        text[]      NOT NULL,
    settings     jsonb       NOT NULL DEFAULT '{}',    -- of each sink: how this relay serves it, for people
    draining     boolean     NOT NULL DEFAULT false,
    no_leasing   boolean     NOT NULL DEFAULT false,   -- no other relay may serve its sinks
    lease        interval    NOT NULL,
    host         text        NOT NULL DEFAULT '',
    pid          int         NOT NULL DEFAULT 0,
    version      text        NOT NULL DEFAULT '',
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL,
    leased_until timestamptz NOT NULL
) WITH (fillfactor = 50,        -- room for the next heartbeat on the same page, without touching an index
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- Who holds (sink, partition), and its cursor while it is free or not yet in its relay's row of outbox_cursors.
CREATE TABLE outbox_partitions (
    sink          text        NOT NULL REFERENCES outbox_sinks (name),
    partition_id  int         NOT NULL,
    relay         uuid        REFERENCES outbox_relays (id),
    epoch         bigint      NOT NULL DEFAULT 0,
    snapshot      pg_snapshot NOT NULL,
    seq           bigint      NOT NULL,
    late_snapshot pg_snapshot,
    late_seq      bigint,
    freed_at      timestamptz,
    CONSTRAINT :outbox_partitions_pkey PRIMARY KEY (sink, partition_id)
) WITH (fillfactor = 50,        -- a partition with a cursor of its own is updated by each settle
        vacuum_truncate = off,  -- shrinking takes an ACCESS EXCLUSIVE lock, for pages that are full again at once
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX :outbox_partitions_relay ON outbox_partitions (relay);

-- How far a relay has got on a sink: each settle inserts the next row and deletes the last, which is the fence. No
-- foreign key: a settle must not touch the relay's row.
CREATE TABLE outbox_cursors (
    sink          text        NOT NULL,
    relay         uuid        NOT NULL,
    no            bigint      NOT NULL,
    snapshot      pg_snapshot NOT NULL,
    late_snapshot pg_snapshot,
    late_seq      bigint,
    partitions    int[]       NOT NULL,
    seqs          bigint[]    NOT NULL,
    published     bigint      NOT NULL,
    settled_at    timestamptz NOT NULL,
    CONSTRAINT :outbox_cursors_pkey PRIMARY KEY (sink, relay, no)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off,     -- as above; many partitions make a row of several kB
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000, toast.autovacuum_vacuum_cost_delay = 0);

-- A message that left the fast path: a full copy. place is seq, but for a scheduled message that found others waiting.
-- A key has exactly one row with due_at, its head, unless a blocking dead letter stands before it (scheduled rows not
-- yet due apart). Rows without a key each have their own. What waits for the end of a pause has due_at infinity: it is due
-- when that pause's expires_at is over, which is looked at there (docs/decisions/0021).
CREATE TABLE outbox_parked (
    sink            text        NOT NULL,
    partition_id    int         NOT NULL,
    partition_key   text        NOT NULL,
    place           bigint      NOT NULL,
    seq             bigint      NOT NULL,
    txid            xid8        NOT NULL,
    id              uuid        NOT NULL,
    topic           text        NOT NULL,
    type            text        NOT NULL,
    payload         bytea       NOT NULL,
    content_type    text        NOT NULL,
    headers         jsonb       NOT NULL,
    scope           text        NOT NULL,
    correlation_id  text        NOT NULL,
    causation_id    text        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_id        text        NOT NULL,
    key_seq         bigint      NOT NULL,
    created_at      timestamptz NOT NULL,
    available_at    timestamptz,
    reason          text        NOT NULL CHECK (reason IN ('retry', 'scheduled', 'behind', 'paused')),
    attempts        int         NOT NULL DEFAULT 0,
    attempts_before int         NOT NULL DEFAULT 0,     -- of them before the last requeue: outside the budget
    due_at          timestamptz,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_failure   timestamptz,
    last_failure    timestamptz,
    last_code       text        NOT NULL DEFAULT '',
    last_error      text        NOT NULL DEFAULT '' CHECK (octet_length(last_error) <= 2048),
    pause           bigint,                             -- with due_at infinity: outbox_pauses.id
    CONSTRAINT :outbox_parked_pkey PRIMARY KEY (sink, partition_id, partition_key, place, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.02);
CREATE UNIQUE INDEX :outbox_parked_id ON outbox_parked (id, sink);      -- each insert into the log asks by id alone
CREATE INDEX :outbox_parked_due ON outbox_parked (sink, due_at, partition_id) WHERE due_at IS NOT NULL;
-- The front of a key's line, past any number of scheduled rows; and the rows with due_at of a key, past any number behind.
CREATE INDEX :outbox_parked_line ON outbox_parked (sink, partition_id, partition_key, place, seq) WHERE reason <> 'scheduled';
CREATE INDEX :outbox_parked_key_due ON outbox_parked (sink, partition_id, partition_key, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX :outbox_parked_pause ON outbox_parked (pause, partition_id) WHERE due_at = 'infinity';
CREATE INDEX :outbox_parked_newest ON outbox_parked (txid DESC, seq DESC);     -- for people's lists

-- A dead letter: a full copy, kept until somebody requeues or discards it.
CREATE TABLE outbox_dead (
    sink           text        NOT NULL,
    id             uuid        NOT NULL,
    partition_id   int         NOT NULL,
    partition_key  text        NOT NULL,
    place          bigint      NOT NULL,
    seq            bigint      NOT NULL,
    txid           xid8        NOT NULL,
    topic          text        NOT NULL,
    type           text        NOT NULL,
    payload        bytea       NOT NULL,
    content_type   text        NOT NULL,
    headers        jsonb       NOT NULL,
    scope          text        NOT NULL,
    correlation_id text        NOT NULL,
    causation_id   text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_id       text        NOT NULL,
    key_seq        bigint      NOT NULL,
    created_at     timestamptz NOT NULL,
    available_at   timestamptz,
    blocks         boolean     NOT NULL,                -- its key waits for it; never with an empty key
    code           text        NOT NULL,
    error          text        NOT NULL CHECK (octet_length(error) <= 2048),
    attempts       int         NOT NULL,
    first_failure  timestamptz NOT NULL,
    last_failure   timestamptz NOT NULL,
    relay          text        NOT NULL,
    CONSTRAINT :outbox_dead_pkey PRIMARY KEY (sink, id),
    CHECK (NOT (blocks AND partition_key = ''))
);
CREATE INDEX :outbox_dead_id ON outbox_dead (id);       -- each insert into the log asks by id alone
CREATE INDEX :outbox_dead_blocks ON outbox_dead (sink, partition_id, partition_key, place) WHERE blocks;
CREATE INDEX :outbox_dead_newest ON outbox_dead (txid DESC, seq DESC);

-- One failed attempt.
CREATE TABLE outbox_attempts (
    sink     text        NOT NULL,
    id       uuid        NOT NULL,
    attempt  int         NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    relay    text        NOT NULL,
    outcome  text        NOT NULL,
    code     text        NOT NULL,
    error    text        NOT NULL CHECK (octet_length(error) <= 2048),
    duration interval    NOT NULL,
    CONSTRAINT :outbox_attempts_pkey PRIMARY KEY (sink, id, attempt)
);

-- The broker's position of a message, only where the sink records positions.
CREATE TABLE outbox_positions (
    sink     text NOT NULL,
    id       uuid NOT NULL,
    position text NOT NULL,
    CONSTRAINT :outbox_positions_pkey PRIMARY KEY (sink, id)
);

-- Copies of rows of outbox_cursors: the last of each minute in which the relay published or moved, and the last before it gave
-- a partition back. count is what it published since its copy before, highest the largest of seqs: copies below a message
-- need not be looked into.
CREATE TABLE outbox_progress (
    sink          text        NOT NULL,
    relay         uuid        NOT NULL,
    no            bigint      NOT NULL,
    minute        timestamptz NOT NULL,     -- of settled_at
    count         bigint      NOT NULL,
    published     bigint      NOT NULL,     -- by this relay, in all
    snapshot      pg_snapshot NOT NULL,
    late_snapshot pg_snapshot,
    late_seq      bigint,
    partitions    int[]       NOT NULL,
    seqs          bigint[]    NOT NULL,
    highest       bigint      NOT NULL,
    settled_at    timestamptz NOT NULL,
    CONSTRAINT :outbox_progress_pkey PRIMARY KEY (sink, relay, no)
);
CREATE INDEX :outbox_progress_minute ON outbox_progress (sink, minute);

-- What people hold back: a sink (then name is empty), the topics that a pattern selects, or a key. A pause whose expires_at
-- is over has ended; its row stays until everything that it held was taken up.
CREATE TABLE outbox_pauses (
    id         bigint      GENERATED ALWAYS AS IDENTITY CONSTRAINT :outbox_pauses_id UNIQUE,
    sink       text        NOT NULL,
    kind       text        NOT NULL CHECK (kind IN ('sink', 'topic', 'key')),
    name       text        NOT NULL CHECK (octet_length(name) <= 255),
    reason     text        NOT NULL CHECK (octet_length(reason) <= 2048),
    actor      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz CHECK (expires_at < '10000-01-01 00:00+00'),
    CONSTRAINT :outbox_pauses_pkey PRIMARY KEY (sink, kind, name),
    CHECK ((kind = 'sink') = (name = '')),
    CHECK (kind <> 'topic' OR name ~ '^(([^.*>]+|[*])[.])*([^.*>]+|[*]|>)$')
);

-- One act of a person; append-only.
CREATE TABLE outbox_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor      text        NOT NULL,
    action     text        NOT NULL,
    sink       text        NOT NULL,
    message_id uuid,
    reason     text        NOT NULL DEFAULT '',
    detail     jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX :outbox_audit_message ON outbox_audit (message_id) WHERE message_id IS NOT NULL;

-- The counter of a key that writers serialise; retention never touches it.
CREATE TABLE outbox_keys (
    partition_key text PRIMARY KEY,
    key_seq       bigint NOT NULL
) WITH (fillfactor = 70,        -- room for the next number of a busy key on the same page
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- How far the log went at some times: what has a number up to seq was written before. Retention goes by it, because created_at
-- is the producer's to choose.
CREATE TABLE outbox_marks (
    at  timestamptz PRIMARY KEY,
    seq bigint NOT NULL
);

-- The token of this life of the server. Unlogged on purpose: PostgreSQL empties it in crash recovery and in a promoted or
-- restored server, which is exactly when commits may have been lost. A dump would carry it into another server; the values of
-- generated columns are in no dump, so there it is made anew. For that the function has to say that it is immutable, which it
-- is not (docs/decisions/0025).
CREATE FUNCTION outbox_new_token(boolean) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT pg_catalog.gen_random_uuid() $$;
CREATE UNLOGGED TABLE outbox_incarnation (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    token uuid NOT NULL GENERATED ALWAYS AS (outbox_new_token(one)) STORED
);
