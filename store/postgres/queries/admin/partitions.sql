-- The partitions of the sink $1 ('': of all sinks); parked messages are counted up to 100,000 for each.
WITH
--:cursors
SELECT c.sink, c.partition_id, coalesce(r.name, ''), c.epoch, c.seq, c.freed_at,
       (SELECT count(*) FROM (SELECT FROM outbox_parked k
                              WHERE k.sink = c.sink AND k.partition_id = c.partition_id LIMIT 100000) t)
FROM cursors c LEFT JOIN outbox_relays r ON r.id = c.relay
ORDER BY c.sink, c.partition_id;
