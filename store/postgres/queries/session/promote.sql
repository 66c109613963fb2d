-- See to it that each of these keys has its one head. Only while the cursor row is ours: a stale owner changes nothing.
-- $1 sink, $2 partitions, $3 keys, $4 relay
SELECT outbox_promote($1, $2::int[], $3::text[])
WHERE EXISTS (SELECT FROM outbox_cursors WHERE sink = $1 AND relay = $4::text::uuid);
