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

-- Every row gets its transaction (the top-level one, within savepoints too) and the next number here, so that nobody can
-- forge them: not by OVERRIDING, not by COPY, which writes into identity columns. A number that was drawn before its row
-- was ready, or a transaction id from elsewhere, would be lost by cursors or come for ever.
--
-- An id is taken while its message is parked or dead, which may outlive its row in the log. With the owner's rights:
-- producers may neither draw numbers nor see what is parked.
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
    RETURN NEW;
END $$;
CREATE TRIGGER :outbox_stamp BEFORE INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION outbox_stamp();

-- Tells relays that sleep that there will be something to read once this transaction is committed. NOTIFY takes a lock on the whole
-- database while its transaction commits, so that it must be rare: the mark in outbox_asleep says up to when a relay wants it (bits
-- 16 and up, in milliseconds of the database's clock; it runs out with a relay that has died), how long before that the next one may
-- come (bits 4 to 15), and how many have come (bits 0 to 3). The first writer that sees a mark notifies, the next one may 5 ms later,
-- then 10, 20, ...: the first may be rolled back. Marks and their changes are in no transaction.
--
-- Nothing in it may fail the transaction that writes: there is no exception block, which would cost a subtransaction, and it is
-- silent while the server's queue of notifications, of which some listener does not take its own, is more than half full.
CREATE FUNCTION outbox_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mark bigint := pg_sequence_last_value('outbox_asleep');
    ends bigint := mark >> 16;
    now  bigint;
BEGIN
    now := date_part('epoch', clock_timestamp()) * 1000;
    IF now < ends AND now >= ends - ((mark >> 4) & 4095) AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM setval('outbox_asleep',
            (ends << 16) | (greatest(ends - now - (5 << (mark & 15)::int), 0) << 4) | least((mark & 15) + 1, 12));
        PERFORM pg_notify(':outbox_wake', TG_TABLE_SCHEMA);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER :outbox_wake AFTER INSERT ON outbox_messages FOR EACH STATEMENT EXECUTE FUNCTION outbox_wake();

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
