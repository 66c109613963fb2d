-- locks: ACCESS EXCLUSIVE on outbox_messages and SHARE ROW EXCLUSIVE on outbox_audit, for a moment
--
-- What runs inside the database. Every body names its objects in full, and those that run with their owner's rights have a
-- search_path of their own: a caller's decides nothing.

-- A UUIDv7 of this moment (RFC 9562): 48 bits of milliseconds, 12 bits of their fraction, 62 random bits, as outbox.NewID.
CREATE FUNCTION outbox_uuid7() RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
DECLARE
    us bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    RETURN encode(int8send(((us / 1000) << 16) | 28672 | ((us % 1000) * 4096 / 1000))
                  || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid;
END $$;
ALTER TABLE outbox_messages ALTER COLUMN id SET DEFAULT outbox_uuid7();

-- The rules of outbox.Rules for headers, for producers that do not have it.
CREATE FUNCTION outbox_headers_valid(headers jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(headers) <> 'object' THEN false ELSE (
        SELECT coalesce(sum(octet_length(h.key) + octet_length(h.value #>> '{}')) <= 8192
                        AND bool_and(jsonb_typeof(h.value) = 'string'
                                     AND h.key ~ '^[A-Za-z0-9!#$%&''*+.^_|~-]{1,128}$' COLLATE "C"
                                     AND lower(h.key COLLATE "C") !~ '^(onward-|ce-|ce_|cloudevents|nats-|webhook-|content-type$)'
                                     AND h.value #>> '{}' !~ '[\x01-\x08\x0a-\x1f\x7f]' COLLATE "C"), true)
        FROM jsonb_each(headers) h) END
$$;
ALTER TABLE outbox_messages ADD CONSTRAINT :outbox_messages_headers_check
    CHECK (headers = '{}' OR outbox_headers_valid(headers));

-- Tells relays that sleep that there will be something to read once this transaction is committed. NOTIFY takes a lock on the whole
-- database while its transaction commits, so that it must be rare: the mark in outbox_asleep says up to when a relay wants it (bits
-- 16 and up, in milliseconds of the database's clock; it runs out with a relay that has died), how long before that the next one may
-- come (bits 4 to 15), and how many have come (bits 0 to 3). The first writer that sees a mark notifies, the next one may 5 ms later,
-- then 10, 20, ...: the first may be rolled back. Marks and their changes are in no transaction.
--
-- Nothing in it may fail the transaction that writes: there is no exception block, which would cost a subtransaction, and it is
-- silent while the server's queue of notifications, of which some listener does not take its own, is more than half full.
CREATE FUNCTION outbox_wake(payload text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mark bigint := pg_sequence_last_value('outbox_asleep');
    ends bigint := mark >> 16;
    now  bigint := date_part('epoch', clock_timestamp()) * 1000;
BEGIN
    IF now < ends AND now >= ends - ((mark >> 4) & 4095) AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM setval('outbox_asleep',
            (ends << 16) | (greatest(ends - now - (5 << (mark & 15)::int), 0) << 4) | least((mark & 15) + 1, 12));
        PERFORM pg_notify(':outbox_wake', payload);
    END IF;
END $$;

-- Every row gets its transaction (the top-level one, within savepoints too) and the next number here, so that nobody can
-- forge them: not by OVERRIDING, not by COPY, which writes into identity columns. A number that was drawn before its row
-- was ready, or a transaction id from elsewhere, would be lost by cursors or come for ever.
--
-- An id is taken while its message is parked or dead, which may outlive its row in the log. With the owner's rights:
-- producers may neither draw numbers nor see what is parked, nor touch the mark of a relay that sleeps, which is looked at here
-- because a trigger of its own would cost each statement several microseconds.
CREATE FUNCTION outbox_stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.txid := pg_current_xact_id();
    NEW.seq := nextval('outbox_messages_seq_seq');
    IF EXISTS (SELECT FROM outbox_parked k WHERE k.id = NEW.id) OR EXISTS (SELECT FROM outbox_dead d WHERE d.id = NEW.id) THEN
        RAISE unique_violation USING CONSTRAINT = ':outbox_messages_id',
            MESSAGE = 'duplicate key value violates unique constraint ":outbox_messages_id"',
            DETAIL = format('Key (id)=(%s) already exists.', NEW.id),
            HINT = 'The message is parked or dead: requeue or discard it.';
    END IF;
    IF pg_sequence_last_value('outbox_asleep') >> 16 > date_part('epoch', clock_timestamp()) * 1000 THEN
        PERFORM outbox_wake(TG_TABLE_SCHEMA);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER :outbox_stamp BEFORE INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION outbox_stamp();

CREATE FUNCTION outbox_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE feature_not_supported USING MESSAGE = format('%s of %I.%I is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = 'Its rows never change once written.';
END $$;
CREATE TRIGGER :outbox_messages_fixed BEFORE UPDATE OR TRUNCATE ON outbox_messages
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_refuse();
CREATE TRIGGER :outbox_audit_fixed BEFORE UPDATE OR DELETE OR TRUNCATE ON outbox_audit
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_refuse();

-- Where the messages with these ids were written, whether they are still in the log or only parked or dead. With the
-- owner's rights: it shows a producer its receipt and nothing else.
CREATE FUNCTION outbox_written(ids uuid[]) RETURNS TABLE (id uuid, partition_id int, seq bigint, txid xid8)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT ON (f.id) f.id, f.partition_id, f.seq, f.txid
    FROM unnest(ids) i
    CROSS JOIN LATERAL (
        SELECT m.id, m.partition_id, m.seq, m.txid FROM outbox_messages m WHERE m.id = i
        UNION ALL
        SELECT k.id, k.partition_id, k.seq, k.txid FROM outbox_parked k WHERE k.id = i
        UNION ALL
        SELECT d.id, d.partition_id, d.seq, d.txid FROM outbox_dead d WHERE d.id = i) f
$$;

-- Writes a message and returns its receipt, id.partition.seq.transaction, as Go's writer does. Arguments that are null are
-- as if they were left out. serialize numbers the messages of the key without gaps, and lets their transactions wait for
-- each other; ignore_duplicate returns the receipt of the first message with this id instead of an error.
CREATE FUNCTION outbox_send(
    topic text, type text, payload bytea, key text DEFAULT '', headers jsonb DEFAULT '{}', id uuid DEFAULT NULL,
    content_type text DEFAULT 'application/octet-stream', scope text DEFAULT '',
    correlation_id text DEFAULT '', causation_id text DEFAULT '', aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    event_id text DEFAULT '', available_at timestamptz DEFAULT NULL,
    serialize boolean DEFAULT false, ignore_duplicate boolean DEFAULT false
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    receipt  text;
    number   bigint  := 0;
    numbered boolean := coalesce(serialize, false) AND coalesce(key, '') <> '';
BEGIN
    IF numbered THEN    -- locks the key to the end of the transaction; what follows sees what the last holder wrote
        INSERT INTO outbox_keys AS k VALUES (key, 1)
        ON CONFLICT ON CONSTRAINT :outbox_keys_pkey DO UPDATE SET key_seq = k.key_seq + 1 RETURNING k.key_seq INTO number;
    END IF;
    IF NOT ignore_duplicate OR NOT EXISTS (SELECT FROM outbox_written(ARRAY[id])) THEN
        INSERT INTO outbox_messages AS m (id, topic, partition_key, type, payload, content_type, headers, scope,
            correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, available_at)
        VALUES (coalesce(id, outbox_uuid7()), topic, coalesce(key, ''), type, payload,
            coalesce(content_type, 'application/octet-stream'), coalesce(headers, '{}'), coalesce(scope, ''),
            coalesce(correlation_id, ''), coalesce(causation_id, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''),
            coalesce(event_id, ''), number, available_at)
        ON CONFLICT DO NOTHING
        RETURNING concat_ws('.', m.id, m.partition_id, m.seq, m.txid) INTO receipt;
    END IF;
    IF receipt IS NOT NULL THEN
        RETURN receipt;
    ELSIF ignore_duplicate THEN
        IF numbered THEN    -- the key is ours: nobody has seen this number
            UPDATE outbox_keys AS k SET key_seq = k.key_seq - 1 WHERE k.partition_key = key;
        END IF;
        RETURN (SELECT concat_ws('.', w.id, w.partition_id, w.seq, w.txid) FROM outbox_written(ARRAY[id]) w);
    END IF;
    RAISE unique_violation USING CONSTRAINT = ':outbox_messages_id',
        MESSAGE = 'duplicate key value violates unique constraint ":outbox_messages_id"',
        DETAIL = format('Key (id)=(%s) already exists.', id);
END $$;

-- The same for text, in UTF-8. (A text that is cast to bytea instead is refused or changed where it has a backslash.)
CREATE FUNCTION outbox_send_text(
    topic text, type text, payload text, key text DEFAULT '', headers jsonb DEFAULT '{}', id uuid DEFAULT NULL,
    content_type text DEFAULT 'text/plain; charset=utf-8', scope text DEFAULT '',
    correlation_id text DEFAULT '', causation_id text DEFAULT '', aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    event_id text DEFAULT '', available_at timestamptz DEFAULT NULL,
    serialize boolean DEFAULT false, ignore_duplicate boolean DEFAULT false
) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT outbox_send(topic, type, convert_to(payload, 'UTF8'), key, headers, id, coalesce(content_type, 'text/plain; charset=utf-8'),
        scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, available_at, serialize, ignore_duplicate)
$$;

-- A sink at a glance ($1; '': all of them), as `onward status` and the view outbox_status show it: cheap at any size. One statement,
-- because the cursor of a partition moves between two tables.
--
-- The backlog of a sink is what its cursors have not passed, in two parts: rows that the snapshot does not see (late,
-- and all newer ones), found by transaction as a read finds them; and rows above seq that the snapshot sees. Each part reads
-- at most 100,000 rows, the second only if the first came to its end. A drained sink costs one probe a partition.
-- Parked and dead ones are counted up to 100,000 of a kind. rate is messages a second since five whole minutes ago.
--
-- The settings: each part is written along an index and stops by a LIMIT; a planner that expects to read most of a table anyway
-- would start at its beginning, or sort it, and not know where the bound lies. Compiling takes longer than running.
CREATE FUNCTION outbox_read_status(sink text) RETURNS TABLE (
    sink_name text, backlog bigint, backlog_at_least boolean, oldest timestamptz,
    parked_retry bigint, parked_scheduled bigint, parked_behind bigint, parked_paused bigint, blocked_keys bigint, dead bigint, counts_at_least boolean,
    published bigint, rate double precision, partitions_owned bigint, partitions_free bigint, last_settle timestamptz)
LANGUAGE sql STABLE SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off AS $$
WITH
cursors AS MATERIALIZED (
    SELECT p.sink, p.partition_id, p.relay, p.epoch, p.freed_at,
           CASE WHEN h.part IS NULL THEN p.snapshot      ELSE h.snapshot      END AS snapshot,
           CASE WHEN h.part IS NULL THEN p.seq           ELSE h.seq           END AS seq,
           CASE WHEN h.part IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS late_snapshot,
           CASE WHEN h.part IS NULL THEN p.late_seq      ELSE h.late_seq      END AS late_seq
    FROM outbox_partitions p
    LEFT JOIN (SELECT c.sink, c.relay, c.snapshot, c.late_snapshot, c.late_seq, u.part, u.seq
               FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) AS u(part, seq)) h
           ON h.sink = p.sink AND h.relay = p.relay AND h.part = p.partition_id
    WHERE CASE WHEN $1::text = '' THEN true ELSE p.sink = $1 END -- an OR looks like few rows, and few are compared with each
)
, floor AS MATERIALIZED (SELECT coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS seq)
-- Of each sink: the least xmax of its snapshots, and the older transactions that were open at one and have ended since.
, unseen AS MATERIALIZED (
    SELECT s.sink, s.xmax,
           (SELECT array_agg(DISTINCT x::text)
            FROM (SELECT DISTINCT c.snapshot::text FROM cursors c WHERE c.sink = s.sink) d
            CROSS JOIN LATERAL pg_snapshot_xip(d.snapshot::pg_snapshot) x
            WHERE x < s.xmax AND pg_visible_in_snapshot(x, pg_current_snapshot())) AS ended
    FROM (SELECT sink, (array_agg(pg_snapshot_xmax(snapshot) ORDER BY pg_snapshot_xmax(snapshot)))[1] AS xmax
          FROM cursors GROUP BY sink) s)
, candidates AS MATERIALIZED (
    SELECT u.sink, m.*
    FROM unseen u
    CROSS JOIN LATERAL (
        (SELECT o.partition_id, o.seq, o.txid, o.created_at, o.topic
         FROM unnest(u.ended) e(x)
         CROSS JOIN LATERAL (SELECT * FROM outbox_messages WHERE txid = e.x::xid8 AND seq > (SELECT seq FROM floor) ORDER BY seq LIMIT 100000) o
         LIMIT 100000)
        UNION ALL
        (SELECT o.partition_id, o.seq, o.txid, o.created_at, o.topic
         FROM outbox_messages o
         WHERE o.txid >= u.xmax AND o.txid < (SELECT pg_snapshot_xmax(pg_current_snapshot())) AND o.seq > (SELECT seq FROM floor)
         ORDER BY o.txid, o.seq LIMIT 100000)) m)
, late AS MATERIALIZED (
    SELECT u.sink, coalesce(l.read, 0) AS read, coalesce(l.n, 0) AS n, l.oldest
    FROM unseen u
    LEFT JOIN (SELECT w.sink, count(*) AS read, count(*) FILTER (WHERE w.waits) AS n, min(w.created_at) FILTER (WHERE w.waits) AS oldest
               FROM (SELECT a.sink, a.created_at,
                            NOT (a.seq <= c.seq
                                 AND (pg_visible_in_snapshot(a.txid, c.snapshot)
                                      OR coalesce(a.seq <= c.late_seq AND pg_visible_in_snapshot(a.txid, c.late_snapshot), false)))
                            AND (s.takes = '' OR a.topic ~ s.takes) AND (s.leaves = '' OR a.topic !~ s.leaves) AS waits
                     FROM candidates a JOIN outbox_sinks s ON s.name = a.sink JOIN cursors c ON c.sink = a.sink AND c.partition_id = a.partition_id) w
               GROUP BY w.sink) l ON l.sink = u.sink)
, fresh AS MATERIALIZED (
    SELECT l.sink, f.n,
           (SELECT min(o.created_at)
            FROM cursors c
            CROSS JOIN LATERAL (SELECT t.created_at
                                FROM (SELECT m.seq, m.created_at, m.topic FROM outbox_messages m
                                      WHERE m.partition_id = c.partition_id AND m.seq > c.seq
                                      ORDER BY m.seq LIMIT CASE WHEN s.takes = '' AND s.leaves = '' THEN 1 ELSE 1000 END) t
                                WHERE (s.takes = '' OR t.topic ~ s.takes) AND (s.leaves = '' OR t.topic !~ s.leaves)
                                ORDER BY t.seq LIMIT 1) o
            WHERE c.sink = l.sink) AS oldest
    FROM late l JOIN outbox_sinks s ON s.name = l.sink
    CROSS JOIN LATERAL (
        SELECT count(*) AS n
        FROM (SELECT FROM cursors c
              CROSS JOIN LATERAL (SELECT m.seq, m.txid, m.topic FROM outbox_messages m
                                  WHERE m.partition_id = c.partition_id AND m.seq > c.seq
                                  ORDER BY m.seq LIMIT CASE WHEN l.read >= 100000 THEN 0 ELSE 200000 END) o
              WHERE c.sink = l.sink AND (o.seq <= (SELECT seq FROM floor) OR pg_visible_in_snapshot(o.txid, c.snapshot))
                AND (s.takes = '' OR o.topic ~ s.takes) AND (s.leaves = '' OR o.topic !~ s.leaves)
              LIMIT 100000) t) f)
-- A parked row with due_at is the head of its key; the others wait behind one.
, heads AS MATERIALIZED (
    SELECT s.name AS sink, k.reason, k.partition_id, k.partition_key, k.waits
    FROM outbox_sinks s
    CROSS JOIN LATERAL (SELECT k.reason, k.partition_id, k.partition_key,
                               k.reason = 'scheduled' AND k.due_at > clock_timestamp() AS waits
                        FROM outbox_parked k WHERE k.sink = s.name AND k.due_at IS NOT NULL
                        ORDER BY k.due_at LIMIT 100000) k)
, parked AS MATERIALIZED (
    SELECT s.name AS sink, h.n AS heads, h.retry, h.scheduled, h.paused, p.n - h.n + h.behind AS behind, p.n AS all_
    FROM outbox_sinks s
    CROSS JOIN LATERAL (SELECT count(*) AS n, count(*) FILTER (WHERE reason = 'retry') AS retry,
                               count(*) FILTER (WHERE reason = 'scheduled') AS scheduled,
                               count(*) FILTER (WHERE reason = 'paused') AS paused,
                               count(*) FILTER (WHERE reason = 'behind') AS behind
                        FROM heads WHERE heads.sink = s.name) h
    CROSS JOIN LATERAL (SELECT count(*) AS n
                        FROM (SELECT FROM outbox_parked k WHERE k.sink = s.name LIMIT h.n + 100000) k) p)
, dead AS MATERIALIZED (
    SELECT s.name AS sink, (SELECT count(*) FROM (SELECT FROM outbox_dead d WHERE d.sink = s.name LIMIT 100000) d) AS n
    FROM outbox_sinks s)
, pace AS MATERIALIZED (
    SELECT s.name AS sink, t.now, t.since,
           (SELECT coalesce(sum(p.count), 0) FROM outbox_progress p WHERE p.sink = s.name AND p.minute >= t.since)
           + (SELECT coalesce(sum(c.published - coalesce((SELECT p.published FROM outbox_progress p WHERE p.sink = c.sink AND p.relay = c.relay
                                                 ORDER BY p.no DESC LIMIT 1), 0)), 0)
              FROM outbox_cursors c WHERE c.sink = s.name AND c.settled_at >= t.since) AS n
    FROM outbox_sinks s
    CROSS JOIN (SELECT clock_timestamp() AS now, date_trunc('minute', clock_timestamp(), 'UTC') - interval '5 minutes' AS since) t)
SELECT s.name,
       least(coalesce(late.n + fresh.n, 0), 100000),
       coalesce(late.read >= 100000 OR late.n + fresh.n >= 100000, false),
       least(late.oldest, fresh.oldest),
       coalesce(parked.retry, 0), coalesce(parked.scheduled, 0), coalesce(parked.behind, 0), coalesce(parked.paused, 0),
       (SELECT count(*) FROM (
            SELECT h.partition_id, h.partition_key FROM heads h
            WHERE h.sink = s.name AND h.partition_key <> '' AND NOT h.waits
            UNION
            SELECT b.partition_id, b.partition_key
            FROM (SELECT d.partition_id, d.partition_key FROM outbox_dead d WHERE d.sink = s.name AND d.blocks LIMIT 100000) b) k),
       coalesce(dead.n, 0),
       coalesce(parked.heads >= 100000 OR parked.all_ >= parked.heads + 100000 OR dead.n >= 100000, false),
       coalesce(s.published + (SELECT coalesce(sum(c.published), 0) FROM outbox_cursors c WHERE c.sink = s.name), 0)::bigint,
       coalesce(pace.n, 0) / extract(epoch FROM pace.now - pace.since)::float8,
       (SELECT count(*) FROM cursors c WHERE c.sink = s.name AND c.relay IS NOT NULL),
       (SELECT count(*) FROM cursors c WHERE c.sink = s.name AND c.relay IS NULL),
       -- Relays that gave everything back have left no cursor row: what they freed has the time of their last write.
       coalesce((SELECT max(c.settled_at) FROM outbox_cursors c WHERE c.sink = s.name),
                (SELECT max(c.freed_at) FROM cursors c WHERE c.sink = s.name))
FROM outbox_sinks s
LEFT JOIN late ON late.sink = s.name
LEFT JOIN fresh ON fresh.sink = s.name
LEFT JOIN parked ON parked.sink = s.name
LEFT JOIN dead ON dead.sink = s.name
LEFT JOIN pace ON pace.sink = s.name
WHERE $1 = '' OR s.name = $1
$$;
CREATE VIEW outbox_status AS
    SELECT sink_name AS sink, backlog, backlog_at_least, clock_timestamp() - oldest AS lag, parked_retry, parked_scheduled, parked_behind,
           parked_paused, blocked_keys, dead, counts_at_least, published, rate, partitions_owned, partitions_free, last_settle
    FROM outbox_read_status('');

-- The partition of a key that is not empty.
CREATE FUNCTION outbox_partition(key text) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(sha256(replace(key, '\', '\\')::bytea) from 1 for 4), 'hex'))::bit(32)::int & (:partitions - 1)
$$;

-- The rows below the cursors that their snapshots do not see: they committed late, and no relay has read them since. Costs as much as
-- was written since the snapshots.
CREATE FUNCTION outbox_late() RETURNS TABLE (sink_name text, partition_id int, seq bigint)
LANGUAGE sql STABLE ROWS 100 SET jit = off SET enable_seqscan = off AS $$
    WITH cursors AS MATERIALIZED (
        SELECT p.sink, p.partition_id, s.takes, s.leaves,
               CASE WHEN h.part IS NULL THEN p.snapshot      ELSE h.snapshot      END AS snapshot,
               CASE WHEN h.part IS NULL THEN p.seq           ELSE h.seq           END AS seq,
               CASE WHEN h.part IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS late_snapshot,
               CASE WHEN h.part IS NULL THEN p.late_seq      ELSE h.late_seq      END AS late_seq
        FROM outbox_partitions p
        JOIN outbox_sinks s ON s.name = p.sink
        LEFT JOIN (SELECT c.sink, c.relay, c.snapshot, c.late_snapshot, c.late_seq, u.part, u.seq
                   FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) AS u(part, seq)) h
               ON h.sink = p.sink AND h.relay = p.relay AND h.part = p.partition_id),
    snapshots AS MATERIALIZED (
        SELECT sink, snapshot::text AS s, max(seq) AS top, coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS floor
        FROM cursors GROUP BY sink, snapshot::text),
    found AS MATERIALIZED (
        SELECT s.sink, s.s, o.partition_id, o.seq, o.txid, o.topic
        FROM snapshots s CROSS JOIN LATERAL pg_snapshot_xip(s.s::pg_snapshot) x CROSS JOIN LATERAL (
            SELECT * FROM outbox_messages WHERE txid = x AND seq <= s.top AND seq > s.floor ORDER BY seq OFFSET 0) o
        UNION ALL
        SELECT s.sink, s.s, o.partition_id, o.seq, o.txid, o.topic
        FROM snapshots s CROSS JOIN LATERAL (
            SELECT * FROM outbox_messages
            WHERE txid >= pg_snapshot_xmax(s.s::pg_snapshot) AND seq <= s.top AND seq > s.floor ORDER BY txid, seq OFFSET 0) o)
    SELECT c.sink, f.partition_id, f.seq
    FROM found f
    JOIN cursors c ON c.sink = f.sink AND c.partition_id = f.partition_id AND c.snapshot::text = f.s AND f.seq <= c.seq
    WHERE (c.takes = '' OR f.topic ~ c.takes) AND (c.leaves = '' OR f.topic !~ c.leaves)
      AND NOT coalesce(f.seq <= c.late_seq AND pg_visible_in_snapshot(f.txid, c.late_snapshot), false)
$$;

-- What each sink has yet to publish: pending in the log, or parked. One row a message and sink. First comes what lies above
-- the cursors, then what committed late, then what is parked, each found by an index: OFFSET 0 keeps the planner from reading the
-- log from its beginning, where all is published. A partition is found by its number.
CREATE VIEW outbox_pending AS
SELECT l.sink, 'pending' AS state, '' AS reason, l.partition_id, l.seq, l.txid, l.id, l.topic, l.partition_key, l.type, l.event_id,
       l.correlation_id, l.scope, l.created_at, l.available_at, 0 AS attempts, NULL::timestamptz AS due_at, '' AS last_code, '' AS last_error
FROM (SELECT c.sink, c.partition_id, m.seq, m.txid, m.id, m.topic, m.partition_key, m.type, m.event_id, m.correlation_id, m.scope, m.created_at, m.available_at
      FROM (SELECT p.sink, p.partition_id, s.takes, s.leaves,
                 CASE WHEN h.part IS NULL THEN p.snapshot      ELSE h.snapshot      END AS snapshot,
                 CASE WHEN h.part IS NULL THEN p.seq           ELSE h.seq           END AS seq,
                 CASE WHEN h.part IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS late_snapshot,
                 CASE WHEN h.part IS NULL THEN p.late_seq      ELSE h.late_seq      END AS late_seq
          FROM outbox_partitions p
          JOIN outbox_sinks s ON s.name = p.sink
          LEFT JOIN (SELECT c.sink, c.relay, c.snapshot, c.late_snapshot, c.late_seq, u.part, u.seq
                     FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.partitions, c.seqs) AS u(part, seq)) h
                 ON h.sink = p.sink AND h.relay = p.relay AND h.part = p.partition_id) c
      CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = c.partition_id AND o.seq > c.seq ORDER BY o.seq OFFSET 0) m
      WHERE (c.takes = '' OR m.topic ~ c.takes) AND (c.leaves = '' OR m.topic !~ c.leaves)
      UNION ALL
      SELECT f.sink_name, f.partition_id, m.seq, m.txid, m.id, m.topic, m.partition_key, m.type, m.event_id, m.correlation_id, m.scope, m.created_at, m.available_at
      FROM outbox_late() f
      CROSS JOIN LATERAL (SELECT * FROM outbox_messages o WHERE o.partition_id = f.partition_id AND o.seq = f.seq LIMIT 1) m) l
-- What was settled before the messages in front of it. By LIMIT each row asks an index; a join would begin with all that is parked.
WHERE (SELECT true FROM outbox_parked k WHERE k.id = l.id AND k.sink = l.sink LIMIT 1) IS NULL
  AND (SELECT true FROM outbox_dead d WHERE d.sink = l.sink AND d.id = l.id LIMIT 1) IS NULL
  AND (SELECT true FROM outbox_audit a WHERE a.message_id = l.id AND a.sink = l.sink AND a.action = 'discard' LIMIT 1) IS NULL
UNION ALL
SELECT k.sink, 'parked', k.reason, k.partition_id, k.seq, k.txid, k.id, k.topic, k.partition_key, k.type, k.event_id,
       k.correlation_id, k.scope, k.created_at, k.available_at, k.attempts, k.due_at, k.last_code, k.last_error
FROM outbox_parked k;

-- When the message went out, in each sink that has published it and of which copies of cursors tell: settled by before, and
-- not earlier than after; minute is that of before. Of a message that was parked it is when it left the log: what became of it
-- then, outbox_attempts tells.
CREATE FUNCTION outbox_published(id uuid) RETURNS TABLE (sink text, minute timestamptz, after timestamptz, before timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT s.name, f.minute,
           -- The copy before is of the same owner: it went out since then, in that minute. Or else since anybody's, or the sink's first.
           CASE WHEN b.settled_at IS NOT NULL THEN greatest(f.minute, b.settled_at)
                ELSE coalesce((SELECT p.settled_at FROM outbox_progress p
                               WHERE p.sink = s.name AND p.minute <= f.minute AND p.settled_at < f.settled_at
                                 AND m.partition_id = ANY (p.partitions)
                               ORDER BY p.minute DESC, p.settled_at DESC LIMIT 1), s.created_at) END,
           f.settled_at
    FROM outbox_messages m
    CROSS JOIN outbox_sinks s
    CROSS JOIN (SELECT coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS seq) floor
    CROSS JOIN LATERAL (
        SELECT c.relay, c.no, c.minute, c.settled_at
        FROM ((SELECT p.relay, p.no, p.minute, p.settled_at FROM outbox_progress p
               WHERE p.sink = s.name AND p.highest >= m.seq AND p.seqs[array_position(p.partitions, m.partition_id)] >= m.seq
                 AND (m.seq <= floor.seq OR pg_visible_in_snapshot(m.txid, p.snapshot)
                      OR m.seq <= p.late_seq AND pg_visible_in_snapshot(m.txid, p.late_snapshot))
               ORDER BY p.minute, p.settled_at LIMIT 1)
              UNION ALL
              SELECT p.relay, p.no, date_trunc('minute', p.settled_at, 'UTC'), p.settled_at FROM outbox_cursors p
              WHERE p.sink = s.name AND p.seqs[array_position(p.partitions, m.partition_id)] >= m.seq
                AND (m.seq <= floor.seq OR pg_visible_in_snapshot(m.txid, p.snapshot)
                     OR m.seq <= p.late_seq AND pg_visible_in_snapshot(m.txid, p.late_snapshot))) c
        ORDER BY c.settled_at LIMIT 1) f
    LEFT JOIN LATERAL (
        SELECT p.settled_at
        FROM (SELECT p.settled_at, p.partitions FROM outbox_progress p
              WHERE p.sink = s.name AND p.relay = f.relay AND p.no < f.no ORDER BY p.no DESC LIMIT 1) p
        WHERE m.partition_id = ANY (p.partitions)) b ON true
    WHERE m.id = $1
      AND (s.takes = '' OR m.topic ~ s.takes) AND (s.leaves = '' OR m.topic !~ s.leaves)
      AND NOT (m.seq <= s.start_seq AND pg_visible_in_snapshot(m.txid, s.start_snapshot))
      AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.id = m.id AND k.sink = s.name)
      AND NOT EXISTS (SELECT FROM outbox_dead d WHERE d.sink = s.name AND d.id = m.id)
      AND NOT EXISTS (SELECT FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = s.name AND a.action = 'discard')
$$;

-- Who may is said by the grants; everybody may nothing.
REVOKE ALL ON FUNCTION outbox_read_status(text), outbox_late(), outbox_partition(text), outbox_published(uuid) FROM PUBLIC;

-- Whose numbers the rows above the floor have, and the cursors: what says that they are another server's (a dump was restored,
-- or rows were copied by logical replication), one sign a line. here is this server's identifier, null where it may not be read.
CREATE FUNCTION outbox_foreign_signs(here text) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    now  CONSTANT xid8   := pg_snapshot_xmax(pg_current_snapshot());
    top  CONSTANT bigint := (SELECT last_value FROM outbox_messages_seq_seq);
    base CONSTANT bigint := coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0);
    home CONSTANT text   := (SELECT value FROM outbox_meta WHERE name = 'system_identifier');
    ahead  xid8;
    passed bigint;
    signs  text[] := '{}';
BEGIN
    IF home <> here THEN
        signs := signs || format('it was written on another server (system identifier %s, here it is %s)', home, here);
    END IF;
    SELECT (array_agg(pg_snapshot_xmax(c.s) ORDER BY pg_snapshot_xmax(c.s) DESC))[1], max(c.l) INTO ahead, passed
    FROM (SELECT p.snapshot AS s, p.seq AS l FROM outbox_partitions p
          UNION ALL SELECT p.late_snapshot, 0 FROM outbox_partitions p WHERE p.late_snapshot IS NOT NULL
          UNION ALL SELECT o.snapshot, (SELECT max(x) FROM unnest(o.seqs) x) FROM outbox_cursors o WHERE cardinality(o.seqs) > 0
          UNION ALL SELECT o.late_snapshot, 0 FROM outbox_cursors o WHERE o.late_snapshot IS NOT NULL AND cardinality(o.seqs) > 0) c;
    IF ahead > now THEN
        signs := signs || format('cursors are of transactions that are still to come (%s, here the next is %s)', ahead, now);
    END IF;
    SELECT m.txid INTO ahead FROM outbox_messages m WHERE m.txid >= now AND m.seq > base ORDER BY m.txid, m.seq LIMIT 1;
    IF FOUND THEN
        signs := signs || format('messages are of transactions that are still to come (%s, here the next is %s)', ahead, now);
    END IF;
    IF top < passed THEN
        signs := signs || format('the sequence went back (it stands at %s, cursors at %s)', top, passed);
    END IF;
    RETURN signs;
END $$;

-- Sets the cursors anew where the log's rows are another server's: from then on all of them count as seen, and what a cursor had
-- not seen goes out with what comes behind it. Once for each copy, whoever comes first; nothing happens where there is no sign.
-- Writers wait meanwhile: whoever calls sets a lock_timeout. With the owner's rights: a relay may neither lock the log nor set the
-- sequence. Returns the token of the server's life, which a rebase renews, and what was found, or null.
CREATE FUNCTION outbox_rebase(relay text) RETURNS TABLE (token uuid, report jsonb) LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET row_security = off AS $$
#variable_conflict use_variable
DECLARE
    here  text;
    signs text[];
    seen  pg_snapshot;
    base  bigint;
    top   bigint;
BEGIN
    IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
        SELECT c.system_identifier::text INTO here FROM pg_control_system() c;
        INSERT INTO outbox_meta (name, value) VALUES ('system_identifier', here) ON CONFLICT DO NOTHING;
    END IF;
    SELECT i.token INTO token FROM outbox_incarnation i;
    UPDATE outbox_meta m SET value = token::text WHERE m.name = 'incarnation' AND m.value NOT IN ('', token::text);
    IF FOUND THEN   -- a copy. Its rows may be this server's all the same: then it has another lineage, and that is all
        UPDATE outbox_meta m SET value = CASE m.name WHEN 'lineage' THEN (m.value::bigint + 1)::text ELSE clock_timestamp()::text END
        WHERE m.name IN ('lineage', 'incarnated');
        UPDATE outbox_partitions SET epoch = greatest(epoch + 1000, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    END IF;
    IF outbox_foreign_signs(here) = '{}' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- Whoever has drawn a number has ended, and nobody settles.
    LOCK TABLE outbox_messages IN SHARE MODE;
    LOCK TABLE outbox_cursors IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE outbox_partitions IN SHARE ROW EXCLUSIVE MODE;
    signs := outbox_foreign_signs(here);
    seen := pg_current_snapshot();
    SELECT i.token INTO token FROM outbox_incarnation i;
    IF signs = '{}' THEN    -- another relay was first
        RETURN NEXT;
        RETURN;
    END IF;
    base := coalesce((SELECT m.value::bigint FROM outbox_meta m WHERE m.name = 'floor'), 0);
    SELECT greatest(base, (SELECT s.last_value FROM outbox_messages_seq_seq s), max(l.seq)) INTO top
    FROM (SELECT f.seq FROM generate_series(0, (SELECT m.value::int - 1 FROM outbox_meta m WHERE m.name = 'partitions')) p
          CROSS JOIN LATERAL (SELECT o.seq FROM outbox_messages o WHERE o.partition_id = p ORDER BY o.seq DESC LIMIT 1) f
          UNION ALL SELECT p.seq FROM outbox_partitions p
          UNION ALL SELECT x FROM outbox_cursors c CROSS JOIN LATERAL unnest(c.seqs) x
          UNION ALL SELECT k.place FROM outbox_parked k) l;

    -- Where each cursor goes on: before the first row at or below it that it has not handed over.
    WITH c AS MATERIALIZED (
        SELECT p.sink, p.partition_id AS part, h.part IS NOT NULL AS held,
               CASE WHEN h.part IS NULL THEN p.snapshot      ELSE h.snapshot      END AS s,
               CASE WHEN h.part IS NULL THEN p.seq           ELSE h.seq           END AS l,
               CASE WHEN h.part IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS s2,
               CASE WHEN h.part IS NULL THEN p.late_seq      ELSE h.late_seq      END AS l2
        FROM outbox_partitions p
        LEFT JOIN (SELECT o.sink, o.relay, o.snapshot, o.late_snapshot, o.late_seq, u.part, u.seq
                   FROM outbox_cursors o CROSS JOIN LATERAL unnest(o.partitions, o.seqs) AS u(part, seq)) h
               ON h.sink = p.sink AND h.relay = p.relay AND h.part = p.partition_id),
    unseen AS MATERIALIZED (
        SELECT g.s, o.* FROM (SELECT c.s::text AS s, max(c.l) AS l FROM c GROUP BY c.s::text) g
        CROSS JOIN LATERAL (
            SELECT m.partition_id, m.seq, m.txid FROM pg_snapshot_xip(g.s::pg_snapshot) x JOIN outbox_messages m ON m.txid = x
            WHERE m.seq > base AND m.seq <= g.l
            UNION ALL
            SELECT m.partition_id, m.seq, m.txid FROM outbox_messages m
            WHERE m.txid >= pg_snapshot_xmax(g.s::pg_snapshot) AND m.seq > base AND m.seq <= g.l) o),
    first AS MATERIALIZED (
        SELECT c.sink, c.part, min(u.seq) AS m
        FROM c JOIN unseen u ON u.s = c.s::text AND u.partition_id = c.part AND u.seq <= c.l
        WHERE NOT coalesce(u.seq <= c.l2 AND pg_visible_in_snapshot(u.txid, c.s2), false)
        GROUP BY c.sink, c.part),
    again AS MATERIALIZED (
        SELECT f.sink, count(*) AS n
        FROM first f JOIN c ON c.sink = f.sink AND c.part = f.part JOIN outbox_sinks s ON s.name = f.sink
        JOIN outbox_messages m ON m.partition_id = f.part AND m.seq > f.m AND m.seq <= c.l
        WHERE (pg_visible_in_snapshot(m.txid, c.s) OR coalesce(m.seq <= c.l2 AND pg_visible_in_snapshot(m.txid, c.s2), false))
          AND (s.takes = '' OR m.topic ~ s.takes) AND (s.leaves = '' OR m.topic !~ s.leaves)
        GROUP BY f.sink),
    own AS (
        UPDATE outbox_partitions p
        SET snapshot = seen, seq = coalesce(f.m - 1, c.l), late_snapshot = NULL, late_seq = NULL,
            epoch = greatest(p.epoch + 1000, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        FROM c LEFT JOIN first f ON f.sink = c.sink AND f.part = c.part
        WHERE p.sink = c.sink AND p.partition_id = c.part
        RETURNING 1),
    held AS (   -- with another number: a settle that waits for the lock finds nothing
        UPDATE outbox_cursors o
        SET no = o.no + 1, snapshot = seen, late_snapshot = NULL, late_seq = NULL,
            seqs = ARRAY(SELECT coalesce(f.m - 1, u.seq) FROM unnest(o.partitions, o.seqs) WITH ORDINALITY AS u(part, seq, place)
                         LEFT JOIN first f ON f.sink = o.sink AND f.part = u.part ORDER BY u.place)
        RETURNING 1)
    SELECT jsonb_build_object('at', clock_timestamp(), 'found', signs, 'floor', top, 'relay', relay,
                              'again', coalesce((SELECT sum(a.n) FROM again a), 0),
                              'sinks', coalesce((SELECT jsonb_object_agg(a.sink, a.n) FROM again a), '{}'))
    INTO report;

    IF top > (SELECT s.last_value FROM outbox_messages_seq_seq s) THEN
        PERFORM setval('outbox_messages_seq_seq', top);
    END IF;
    UPDATE outbox_meta m SET value = (m.value::bigint + 1)::text WHERE m.name = 'lineage' RETURNING report || jsonb_build_object('lineage', m.value) INTO report;
    INSERT INTO outbox_incarnation AS i DEFAULT VALUES ON CONFLICT (one) DO UPDATE SET one = true RETURNING i.token INTO token;
    UPDATE outbox_meta m SET value = CASE m.name WHEN 'floor' THEN top::text WHEN 'incarnation' THEN token::text
                                                 WHEN 'system_identifier' THEN coalesce(here, m.value) ELSE report::text END
    WHERE m.name IN ('floor', 'incarnation', 'system_identifier', 'rebased');
    INSERT INTO outbox_audit (actor, action, sink, reason, detail)
    VALUES (relay, 'rebase', '', array_to_string(signs, '; '), report);
    RETURN NEXT;
END $$;
REVOKE ALL ON FUNCTION outbox_foreign_signs(text), outbox_rebase(text) FROM PUBLIC;
