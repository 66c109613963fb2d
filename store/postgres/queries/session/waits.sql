-- Something of the key of m waits. Each is the first of an index's order: a planner that takes every row for one of this
-- key (as when one key has all of them) would else look for it along any index of the sink, past all that it has.
(SELECT true FROM outbox_parked k
 WHERE k.sink = $1 AND k.partition_id = m.partition_id AND k.partition_key = m.partition_key AND k.reason <> 'scheduled'
 ORDER BY k.place, k.seq LIMIT 1) IS NOT NULL
OR (SELECT true FROM outbox_dead d
    WHERE d.sink = $1 AND d.partition_id = m.partition_id AND d.partition_key = m.partition_key AND d.blocks
    ORDER BY d.place LIMIT 1) IS NOT NULL
