-- locks: ACCESS EXCLUSIVE on outbox_messages, for a moment (triggers, a default)
--
-- What runs inside the database. Every body names its objects in full: a caller's search_path decides nothing.

-- A UUIDv7 of this moment (RFC 9562): 48 bits of milliseconds, 12 bits of their fraction, 62 random bits, as outbox.NewID.
CREATE FUNCTION outbox_uuid7() RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
DECLARE
    us bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    RETURN encode(int8send(((us / 1000) << 16) | 28672 | ((us % 1000) * 4096 / 1000))
                  || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid;
END $$;

ALTER TABLE outbox_messages ALTER COLUMN id SET DEFAULT outbox_uuid7();

-- The transaction is the top-level one, within savepoints too; whatever the producer sent is overwritten.
CREATE FUNCTION outbox_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.txid := pg_current_xact_id();
    RETURN NEW;
END $$;
CREATE TRIGGER :outbox_stamp BEFORE INSERT ON outbox_messages FOR EACH ROW EXECUTE FUNCTION outbox_stamp();
