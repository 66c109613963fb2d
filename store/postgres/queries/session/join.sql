-- A further sink of a relay that is registered, unless the sink is held. $1 id, $2 sink, $3 its settings
WITH relay AS (
    UPDATE outbox_relays r SET sinks = sinks || $2::text, settings = settings || jsonb_build_object($2::text, $3::text)
    WHERE id = $1::text::uuid AND NOT $2::text = ANY (sinks)
      AND NOT EXISTS (SELECT FROM outbox_relays o WHERE o.id <> r.id AND $2::text = ANY (o.sinks) AND (o.no_leasing OR r.no_leasing))
    RETURNING id)
INSERT INTO outbox_cursors (sink, relay, no, snapshot, partitions, seqs, published, settled_at)
SELECT $2::text, relay.id, 0, pg_current_snapshot(), '{}', '{}', 0, clock_timestamp()
FROM relay;
