-- Scheduled messages that are due and found others of their key waiting: they go behind them, and before
-- whatever is written from now on: their place is a number of the log's own sequence.
-- $1 sink, $2 relay, $3 ids
--
-- Each is looked up by its id, whatever is parked besides: in CTEs of their own, so that no plan turns that around.
WITH found AS MATERIALIZED (
    SELECT o.id, o.partition_id, o.due_at, o.place, o.seq
    FROM unnest($3::text[]) v(id)
    CROSS JOIN LATERAL (SELECT * FROM outbox_parked k WHERE k.id = v.id::uuid AND k.sink = $1 AND k.reason = 'scheduled' LIMIT 1 FOR UPDATE) o),
mine AS MATERIALIZED (
    SELECT f.id, f.due_at, f.place, f.seq
    FROM found f
    CROSS JOIN LATERAL (SELECT FROM outbox_partitions p WHERE p.sink = $1 AND p.partition_id = f.partition_id AND p.relay = $2::text::uuid LIMIT 1) p)
UPDATE outbox_parked k SET reason = 'behind', due_at = NULL, place = n.place
FROM (SELECT m.id, nextval('outbox_messages_seq_seq') AS place FROM (SELECT id FROM mine ORDER BY due_at, place, seq) m) n
WHERE k.sink = $1 AND k.id = n.id;
