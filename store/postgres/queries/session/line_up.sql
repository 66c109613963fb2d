-- Scheduled messages that are due and found others of their key waiting: they go behind them.
-- $1 sink, $2 relay, $3 ids
UPDATE outbox_parked k SET reason = 'behind', due_at = NULL, place = (SELECT last_value FROM outbox_messages_seq_seq)
FROM outbox_partitions p
WHERE k.sink = $1 AND k.id = ANY ($3::text[]::uuid[]) AND k.reason = 'scheduled'
  AND p.sink = $1 AND p.partition_id = k.partition_id AND p.relay = $2::text::uuid;
