--:columns
       , m.available_at IS NOT NULL AND m.available_at > (SELECT at FROM now),
       m.partition_key <> '' AND (SELECT blocked FROM held) AND (
           EXISTS (SELECT FROM outbox_parked k WHERE k.sink = $1 AND k.partition_id = m.partition_id
                   AND k.partition_key = m.partition_key AND k.reason <> 'scheduled')
           OR EXISTS (SELECT FROM outbox_parked k WHERE k.sink = $1 AND k.partition_id = m.partition_id
                      AND k.partition_key = m.partition_key AND k.due_at <= (SELECT at FROM now))
           OR EXISTS (SELECT FROM outbox_dead d WHERE d.sink = $1 AND d.partition_id = m.partition_id
                      AND d.partition_key = m.partition_key AND d.blocks))
