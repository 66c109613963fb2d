-- The pauses of the sink $1 ('': of all sinks) that have not ended.
SELECT json_build_object('id', id, 'sink', sink, 'kind', kind, 'name', name, 'reason', reason, 'actor', actor,
                         'created_at', created_at, 'expires_at', expires_at)::text
FROM outbox_pauses
WHERE ($1::text = '' OR sink = $1) AND (expires_at IS NULL OR expires_at > clock_timestamp());
