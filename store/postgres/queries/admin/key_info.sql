-- How these keys stand in the sink $1: $2 partitions, $3 keys; counted up to $4, and one more.
SELECT u.no - 1,
       (SELECT count(*) FROM (SELECT FROM outbox_parked k
                              WHERE k.sink = $1 AND k.partition_id = u.part AND k.partition_key = u.key AND k.reason <> 'scheduled'
                              LIMIT $4::int + 1) t)
       + (SELECT count(*) FROM (SELECT FROM outbox_parked k
                                WHERE k.sink = $1 AND k.partition_id = u.part AND k.partition_key = u.key AND k.reason = 'scheduled'
                                  AND k.due_at <= clock_timestamp() LIMIT $4::int + 1) t),
       (SELECT count(*) FROM (SELECT FROM outbox_parked k
                              WHERE k.sink = $1 AND k.partition_id = u.part AND k.partition_key = u.key AND k.reason = 'scheduled'
                                AND k.due_at > clock_timestamp() LIMIT $4::int) t),
       least(h.created_at, d.created_at),
       h.id, coalesce(h.topic, ''), coalesce(h.reason, ''), coalesce(h.attempts, 0), nullif(h.due_at, 'infinity'),
       coalesce(h.last_code, ''), coalesce(h.last_error, ''),
       d.id, coalesce(d.topic, ''), coalesce(d.attempts, 0), coalesce(d.code, ''), coalesce(d.error, ''),
       (SELECT count(*) FROM (SELECT FROM outbox_dead b
                              WHERE b.sink = $1 AND b.partition_id = u.part AND b.partition_key = u.key AND b.blocks LIMIT $4::int) t)
FROM unnest($2::int[], $3::text[]) WITH ORDINALITY u(part, key, no)
LEFT JOIN LATERAL (SELECT * FROM outbox_parked k
                   WHERE k.sink = $1 AND k.partition_id = u.part AND k.partition_key = u.key AND k.reason <> 'scheduled'
                   ORDER BY k.place, k.seq LIMIT 1) h ON true
LEFT JOIN LATERAL (SELECT * FROM outbox_dead b
                   WHERE b.sink = $1 AND b.partition_id = u.part AND b.partition_key = u.key AND b.blocks
                   ORDER BY b.place LIMIT 1) d ON true
ORDER BY u.no;
