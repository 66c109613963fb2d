--:columns
       , m.available_at IS NOT NULL AND m.available_at > (SELECT at FROM now),
       m.partition_key <> '' AND (SELECT blocked FROM held) AND (
--:waits
           OR coalesce((SELECT k.due_at FROM outbox_parked k
                        WHERE k.sink = $1 AND k.partition_id = m.partition_id AND k.partition_key = m.partition_key AND k.due_at IS NOT NULL
                        ORDER BY k.due_at LIMIT 1) <= (SELECT at FROM now), false))
