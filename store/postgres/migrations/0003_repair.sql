-- locks: none that others could wait for: it makes new functions
--
-- What people do to parked and dead messages, and the rule that keeps a key's line in order while they do
-- (docs/decisions/0002).
--
-- Whoever changes parked or dead rows of a key, relay or person, calls outbox_lock_lines before it locks anything else and
-- outbox_promote after its last change, in one READ COMMITTED transaction. Without the lock two of them would not see each
-- other's rows: both would take another one for the head, or none.

-- Holds the lines of these partitions until the transaction ends. A line's lock is that of its partition, and at most 256 a
-- sink, so that a settlement of a thousand keys cannot fill the server's lock table; in order, so that nobody waits in a ring.
CREATE FUNCTION outbox_lock_lines(sink text, partitions int[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    slot int;
BEGIN
    FOR slot IN SELECT DISTINCT p & 255 AS s FROM unnest(partitions) p ORDER BY s LOOP
        PERFORM pg_advisory_xact_lock(hashtext('outbox_parked'::regclass::oid || ' ' || sink), slot);
    END LOOP;
END $$;

-- Makes the first of each line its head: the one row of the key with due_at, scheduled rows apart; or nobody, while a dead
-- letter blocks the key. partitions[i] and keys[i] are a line; doubles do no harm, and empty keys have no line.
CREATE FUNCTION outbox_promote(sink text, partitions int[], keys text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    WITH line AS MATERIALIZED (
             SELECT l.part, l.key, h.place, h.seq,
                    EXISTS (SELECT FROM outbox_dead d
                            WHERE d.sink = sink AND d.partition_id = l.part AND d.partition_key = l.key AND d.blocks) AS blocked
             FROM (SELECT DISTINCT u.part, u.key FROM unnest(partitions, keys) u(part, key) WHERE u.key <> '') l
             CROSS JOIN LATERAL (SELECT k.place, k.seq FROM outbox_parked k
                                 WHERE k.sink = sink AND k.partition_id = l.part AND k.partition_key = l.key AND k.reason <> 'scheduled'
                                 ORDER BY k.place, k.seq LIMIT 1) h),
         others AS (
             UPDATE outbox_parked k SET due_at = NULL FROM line l
             WHERE k.sink = sink AND k.partition_id = l.part AND k.partition_key = l.key
               AND k.due_at IS NOT NULL AND k.reason <> 'scheduled' AND (l.blocked OR (k.place, k.seq) <> (l.place, l.seq)))
    UPDATE outbox_parked k SET due_at = clock_timestamp() FROM line l
    WHERE k.sink = sink AND k.partition_id = l.part AND k.partition_key = l.key AND k.place = l.place AND k.seq = l.seq
      AND k.due_at IS NULL AND NOT l.blocked;
END $$;

-- A person's act sees the line only if each of its statements has a snapshot of its own.
CREATE FUNCTION outbox_check_isolation() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a message can be requeued or discarded in READ COMMITTED only, not in %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'ON005', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
END $$;

-- Says why there is nothing to act upon.
CREATE FUNCTION outbox_refuse_act(sink text, id uuid) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
BEGIN
    IF NOT EXISTS (SELECT FROM outbox_sinks s WHERE s.name = sink) THEN
        RAISE EXCEPTION 'there is no sink % (onward/not-found)', quote_literal(sink) USING ERRCODE = 'ON002';
    ELSIF EXISTS (SELECT FROM outbox_parked k WHERE k.sink = sink AND k.id = id) THEN
        RAISE EXCEPTION 'message % is parked in sink %, not dead (onward/state-conflict)', id, quote_literal(sink) USING ERRCODE = 'ON003';
    ELSIF EXISTS (SELECT FROM outbox_messages m WHERE m.id = id) THEN
        RAISE EXCEPTION 'message % is neither dead nor parked in sink % (onward/state-conflict)', id, quote_literal(sink)
            USING ERRCODE = 'ON003';
    END IF;
    RAISE EXCEPTION 'there is no message % in sink % (onward/not-found)', id, quote_literal(sink) USING ERRCODE = 'ON002';
END $$;

-- How many messages of the key, later than the place, the sink has published, as far as the log still has them: passed by
-- the partition's cursor, and neither parked, dead nor discarded.
CREATE FUNCTION outbox_published_after(sink text, part int, key text, place bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_variable
BEGIN
    RETURN (
        WITH cursor AS MATERIALIZED (
            SELECT coalesce(h.seq, p.seq) AS seq, coalesce(h.snapshot, p.snapshot) AS snapshot,
                   CASE WHEN h.seq IS NULL THEN p.late_seq ELSE h.late_seq END AS late_seq,
                   CASE WHEN h.seq IS NULL THEN p.late_snapshot ELSE h.late_snapshot END AS late_snapshot,
                   coalesce((SELECT value::bigint FROM outbox_meta WHERE name = 'floor'), 0) AS floor
            FROM outbox_partitions p
            LEFT JOIN LATERAL (SELECT c.snapshot, c.late_snapshot, c.late_seq, c.seqs[array_position(c.partitions, part)] AS seq
                               FROM outbox_cursors c
                               WHERE c.sink = sink AND c.relay = p.relay AND part = ANY (c.partitions)) h ON true
            WHERE p.sink = sink AND p.partition_id = part)
        SELECT count(*)
        FROM cursor c JOIN outbox_messages m ON m.partition_id = part AND m.partition_key = key AND m.seq > place AND m.seq <= c.seq
        WHERE (m.seq <= c.floor OR pg_visible_in_snapshot(m.txid, c.snapshot)
               OR m.seq <= c.late_seq AND pg_visible_in_snapshot(m.txid, c.late_snapshot))
          AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.sink = sink AND k.id = m.id)
          AND NOT EXISTS (SELECT FROM outbox_dead d WHERE d.sink = sink AND d.id = m.id)
          AND NOT EXISTS (SELECT FROM outbox_audit a WHERE a.message_id = m.id AND a.sink = sink AND a.action = 'discard'));
END $$;

-- Makes a dead letter the parked head of its key again, due now: same id, same place, attempts go on and the budget starts
-- again. Returns how many later messages of the key were published meanwhile, as far as the log still has them; where there
-- are any it refuses (ON001, onward/reorder-refused), unless accept_reorder. Under a blocking dead letter there are none.
-- ON002 onward/not-found, ON003 onward/state-conflict, ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_requeue(sink text, id uuid, accept_reorder boolean DEFAULT false, actor text DEFAULT current_user)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    d     outbox_dead;
    later bigint := 0;
BEGIN
    PERFORM outbox_check_isolation();
    PERFORM outbox_lock_lines(sink, ARRAY(SELECT l.partition_id FROM outbox_dead l WHERE l.sink = sink AND l.id = id));
    DELETE FROM outbox_dead l WHERE l.sink = sink AND l.id = id RETURNING l.* INTO d;
    IF NOT FOUND THEN
        PERFORM outbox_refuse_act(sink, id);
    END IF;
    IF d.partition_key <> '' AND NOT d.blocks THEN
        later := outbox_published_after(sink, d.partition_id, d.partition_key, d.place);
    END IF;
    IF later > 0 AND NOT coalesce(accept_reorder, false) THEN
        RAISE EXCEPTION 'at least % later message(s) of its key were published (onward/reorder-refused)', later
            USING ERRCODE = 'ON001', DETAIL = later::text, HINT = 'accept_reorder => true publishes it after them';
    END IF;
    INSERT INTO outbox_parked (sink, partition_id, partition_key, place, seq, txid, id, topic, type, payload, content_type,
        headers, scope, correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at,
        reason, attempts, attempts_before, due_at, first_failure, last_failure, last_code, last_error)
    VALUES (sink, d.partition_id, d.partition_key, d.place, d.seq, d.txid, d.id, d.topic, d.type, d.payload, d.content_type,
        d.headers, d.scope, d.correlation_id, d.causation_id, d.aggregate_type, d.aggregate_id, d.event_id, d.key_seq, d.created_at,
        d.available_at, 'retry', d.attempts, d.attempts, clock_timestamp(), d.first_failure, d.last_failure, d.code, d.error);
    INSERT INTO outbox_audit (actor, action, sink, message_id, detail)
    VALUES (coalesce(nullif(btrim(actor), ''), session_user), 'requeue', sink, id, jsonb_build_object('published_later', later, 'code', d.code));
    PERFORM outbox_promote(sink, ARRAY[d.partition_id], ARRAY[d.partition_key]);
    RETURN later;
END $$;

-- Removes a dead or parked message for good, and lets its key go on. Returns what it was: dead or parked. ON002
-- onward/not-found, ON003 onward/state-conflict, ON004 onward/reason-required, ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_discard(sink text, id uuid, reason text, actor text DEFAULT current_user)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    gone record;
BEGIN
    PERFORM outbox_check_isolation();
    IF coalesce(btrim(reason), '') = '' THEN
        RAISE EXCEPTION 'a discard needs a reason (onward/reason-required)' USING ERRCODE = 'ON004';
    END IF;
    PERFORM outbox_lock_lines(sink, ARRAY(
        SELECT l.partition_id FROM outbox_dead l WHERE l.sink = sink AND l.id = id
        UNION SELECT k.partition_id FROM outbox_parked k WHERE k.sink = sink AND k.id = id));
    WITH dead AS (DELETE FROM outbox_dead l WHERE l.sink = sink AND l.id = id
                  RETURNING 'dead' AS was, l.partition_id, l.partition_key, l.seq, l.topic, l.type, l.code),
         parked AS (DELETE FROM outbox_parked k WHERE k.sink = sink AND k.id = id
                    RETURNING 'parked' AS was, k.partition_id, k.partition_key, k.seq, k.topic, k.type, k.last_code)
    SELECT * INTO gone FROM (TABLE dead UNION ALL TABLE parked) b;
    IF NOT FOUND THEN
        PERFORM outbox_refuse_act(sink, id);
    END IF;
    INSERT INTO outbox_audit (actor, action, sink, message_id, reason, detail)
    VALUES (coalesce(nullif(btrim(actor), ''), session_user), 'discard', sink, id, reason, jsonb_build_object('was', gone.was, 'code', gone.code, 'topic', gone.topic,
        'type', gone.type, 'key', gone.partition_key, 'seq', gone.seq));
    PERFORM outbox_promote(sink, ARRAY[gone.partition_id], ARRAY[gone.partition_key]);
    RETURN gone.was;
END $$;

-- Forgets a sink: its cursors, and its parked and dead messages; the log is left alone. ON002 onward/not-found, ON006
-- onward/state-conflict while a live relay serves it, ON004 onward/reason-required, ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_remove_sink(sink text, reason text, actor text DEFAULT current_user)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    server   text;
    parked   bigint;
    dead     bigint;
BEGIN
    PERFORM outbox_check_isolation();
    IF coalesce(btrim(reason), '') = '' THEN
        RAISE EXCEPTION 'removing a sink needs a reason (onward/reason-required)' USING ERRCODE = 'ON004';
    END IF;
    -- In the order of all locks: relays, cursors, partitions, parked. A relay that registers waits for the sink's row.
    PERFORM FROM outbox_sinks s WHERE s.name = sink FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no sink % (onward/not-found)', quote_literal(sink) USING ERRCODE = 'ON002';
    END IF;
    SELECT r.name INTO server FROM outbox_relays r WHERE sink = ANY (r.sinks) AND r.leased_until > clock_timestamp() ORDER BY r.name LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'relay % serves sink % (onward/state-conflict)', server, quote_literal(sink)
            USING ERRCODE = 'ON006', HINT = 'stop the relays that serve it, or take the sink out of their configuration';
    END IF;
    DELETE FROM outbox_cursors c WHERE c.sink = sink;
    UPDATE outbox_relays r SET sinks = array_remove(r.sinks, sink), settings = r.settings - sink WHERE sink = ANY (r.sinks);
    DELETE FROM outbox_partitions p WHERE p.sink = sink;
    DELETE FROM outbox_parked k WHERE k.sink = sink;
    GET DIAGNOSTICS parked = ROW_COUNT;
    DELETE FROM outbox_dead d WHERE d.sink = sink;
    GET DIAGNOSTICS dead = ROW_COUNT;
    DELETE FROM outbox_attempts a WHERE a.sink = sink;
    DELETE FROM outbox_positions p WHERE p.sink = sink;
    DELETE FROM outbox_progress p WHERE p.sink = sink;
    DELETE FROM outbox_pauses p WHERE p.sink = sink;
    DELETE FROM outbox_sinks s WHERE s.name = sink;
    INSERT INTO outbox_audit (actor, action, sink, reason, detail)
    VALUES (coalesce(nullif(btrim(actor), ''), session_user), 'remove sink', sink, reason, jsonb_build_object('parked', parked, 'dead', dead));
END $$;

-- Removes pauses that have ended and hold nothing any more. A settle that parks under a pause holds its row until it has
-- committed: what it parked is seen here, by a statement that began after the row was locked, or the row is left for the
-- next time. Nothing may wait for a pause that is not there: nobody would ever look for it.
CREATE FUNCTION outbox_sweep_pauses(sink text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    ended bigint[];
BEGIN
    ended := ARRAY(SELECT p.id FROM outbox_pauses p WHERE p.sink = sink AND p.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED);
    DELETE FROM outbox_pauses p
    WHERE p.id = ANY (ended) AND NOT EXISTS (SELECT FROM outbox_parked k WHERE k.pause = p.id AND k.due_at = 'infinity');
END $$;

-- Holds messages of the sink back: of the whole sink (name ''), of the topics that a pattern selects, or of a key; until
-- expires_at, or until somebody resumes. What is paused already gets the new reason and end. Returns the pause's id. ON002
-- onward/not-found, ON004 onward/reason-required, ON007 onward/pause-invalid, ON008 onward/state-conflict (1,000 pauses of a
-- sink), ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_pause(sink text, kind text, name text, reason text, expires_at timestamptz DEFAULT NULL, actor text DEFAULT current_user)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    who  text := coalesce(nullif(btrim(actor), ''), session_user);
    made bigint;
BEGIN
    PERFORM outbox_check_isolation();
    IF coalesce(btrim(reason), '') = '' THEN
        RAISE EXCEPTION 'a pause needs a reason (onward/reason-required)' USING ERRCODE = 'ON004';
    ELSIF expires_at <= clock_timestamp() THEN
        RAISE EXCEPTION 'it would have ended already, at % (onward/pause-invalid)', expires_at USING ERRCODE = 'ON007';
    END IF;
    PERFORM FROM outbox_sinks s WHERE s.name = sink FOR NO KEY UPDATE;  -- others who pause wait: they are counted
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no sink % (onward/not-found)', quote_literal(sink) USING ERRCODE = 'ON002';
    END IF;
    PERFORM outbox_sweep_pauses(sink);
    IF (SELECT count(*) FROM outbox_pauses p
        WHERE p.sink = sink AND (p.expires_at IS NULL OR p.expires_at > clock_timestamp()) AND (p.kind, p.name) <> (kind, name)) >= 1000 THEN
        RAISE EXCEPTION 'sink % has 1000 pauses already (onward/state-conflict)', quote_literal(sink)
            USING ERRCODE = 'ON008', HINT = 'pause a topic, a pattern of topics, or the sink';
    END IF;
    INSERT INTO outbox_pauses AS p (sink, kind, name, reason, actor, expires_at) VALUES (sink, kind, name, reason, who, expires_at)
    ON CONFLICT ON CONSTRAINT :outbox_pauses_pkey
        DO UPDATE SET reason = excluded.reason, actor = excluded.actor, created_at = clock_timestamp(), expires_at = excluded.expires_at
    RETURNING p.id INTO made;
    INSERT INTO outbox_audit (actor, action, sink, reason, detail)
    VALUES (who, 'pause', sink, reason, jsonb_build_object('kind', kind, 'name', name, 'expires_at', expires_at));
    RETURN made;
END $$;

-- Ends a pause now. It touches nothing else: relays look for what a pause held that has ended. ON002 onward/not-found,
-- ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_resume(sink text, kind text, name text, reason text DEFAULT '', actor text DEFAULT current_user)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    over record;
BEGIN
    PERFORM outbox_check_isolation();
    UPDATE outbox_pauses p SET expires_at = clock_timestamp()
    WHERE p.sink = sink AND p.kind = kind AND p.name = name AND (p.expires_at IS NULL OR p.expires_at > clock_timestamp())
    RETURNING p.reason, p.actor, p.created_at INTO over;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM outbox_sinks s WHERE s.name = sink) THEN
            RAISE EXCEPTION 'there is no sink % (onward/not-found)', quote_literal(sink) USING ERRCODE = 'ON002';
        END IF;
        RAISE EXCEPTION '% of sink % is not paused (onward/not-found)', btrim(kind || ' ' || name), quote_literal(sink) USING ERRCODE = 'ON002';
    END IF;
    INSERT INTO outbox_audit (actor, action, sink, reason, detail)
    VALUES (coalesce(nullif(btrim(actor), ''), session_user), 'resume', sink, coalesce(reason, ''),
            jsonb_build_object('kind', kind, 'name', name, 'paused_by', over.actor, 'paused_at', over.created_at, 'paused_for', over.reason));
END $$;

-- Discards dead letters that died longer ago than this, of at most 200 that come after a place in the order of sink and id.
-- Returns where it ended (empty: at the end of all) and how many it discarded. What a person requeued or discarded meanwhile is
-- left. ON005 not in READ COMMITTED.
CREATE FUNCTION outbox_expire(age interval, after_sink text, after_id uuid, OUT last_sink text, OUT last_id uuid, OUT discarded int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    read     int := 0;
    d        record;
    one      text;
    old      uuid[];
    parts    int[];
    keys     text[];
BEGIN
    PERFORM outbox_check_isolation();
    discarded := 0;
    FOR d IN SELECT l.sink, l.id FROM outbox_dead l WHERE (l.sink, l.id) > (after_sink, after_id) ORDER BY l.sink, l.id LIMIT 200 LOOP
        read := read + 1;
        last_sink := d.sink;
        last_id := d.id;
    END LOOP;
    -- One sink after the other, in order: the lines of each are held to the end.
    FOR one IN SELECT DISTINCT l.sink FROM outbox_dead l
               WHERE (l.sink, l.id) > (after_sink, after_id) AND (l.sink, l.id) <= (last_sink, last_id)
                 AND l.last_failure < clock_timestamp() - age ORDER BY l.sink LOOP
        SELECT array_agg(l.id), array_agg(l.partition_id) INTO old, parts FROM outbox_dead l
        WHERE l.sink = one AND (l.sink, l.id) > (after_sink, after_id) AND (l.sink, l.id) <= (last_sink, last_id)
          AND l.last_failure < clock_timestamp() - age;
        PERFORM outbox_lock_lines(one, parts);
        WITH gone AS (
            DELETE FROM outbox_dead l WHERE l.sink = one AND l.id = ANY (old) AND l.last_failure < clock_timestamp() - age RETURNING l.*),
        told AS (
            INSERT INTO outbox_audit (actor, action, sink, message_id, reason, detail)
            SELECT 'retention', 'discard', one, g.id, format('dead since %s, longer than retention.dead (%s)', g.last_failure, age),
                   jsonb_build_object('was', 'dead', 'code', g.code, 'topic', g.topic, 'type', g.type, 'key', g.partition_key, 'seq', g.seq)
            FROM gone g)
        SELECT array_agg(g.partition_id), array_agg(g.partition_key), discarded + count(*) INTO parts, keys, discarded FROM gone g;
        PERFORM outbox_promote(one, parts, keys);
    END LOOP;
    IF read < 200 THEN
        last_sink := NULL;
        last_id := NULL;
    END IF;
END $$;

-- Who may is said by the grants; everybody may nothing.
REVOKE ALL ON FUNCTION outbox_written(uuid[]), outbox_wake(text), outbox_lock_lines(text, int[]), outbox_promote(text, int[], text[]),
    outbox_check_isolation(), outbox_refuse_act(text, uuid), outbox_published_after(text, int, text, bigint),
    outbox_requeue(text, uuid, boolean, text), outbox_discard(text, uuid, text, text),
    outbox_remove_sink(text, text, text), outbox_sweep_pauses(text), outbox_pause(text, text, text, text, timestamptz, text),
    outbox_resume(text, text, text, text, text), outbox_expire(interval, text, uuid) FROM PUBLIC;
