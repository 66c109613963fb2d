-- Scheduled messages that are due and found others of their key waiting: they go behind them, and before
-- whatever is written from now on: their place is a number of the log's own sequence.
-- $1 sink, $2 relay, $3 ids
UPDATE outbox_parked k SET reason = 'behind', due_at = NULL, place = n.place
FROM (SELECT d.id, nextval('outbox_messages_seq_seq') AS place
      FROM (SELECT o.id FROM outbox_parked o JOIN outbox_partitions p ON p.sink = $1 AND p.partition_id = o.partition_id
            WHERE o.sink = $1 AND o.id = ANY ($3::text[]::uuid[]) AND o.reason = 'scheduled' AND p.relay = $2::text::uuid
            ORDER BY o.due_at, o.place, o.seq
            FOR UPDATE OF o) d) n
WHERE k.sink = $1 AND k.id = n.id;
