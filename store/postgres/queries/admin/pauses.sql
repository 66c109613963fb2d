-- The pauses of the sink $1 ('': of all sinks) that have not ended, or of them the one with the number $2 (0: all). Times are of UTC: the last day of the year 9999 is in the year 10000
-- of sessions further east.
SELECT json_build_object('id', id, 'sink', sink, 'kind', kind, 'name', name, 'reason', reason, 'actor', actor,
                         'created_at', (to_json(created_at AT TIME ZONE 'UTC') #>> '{}') || 'Z',
                         'expires_at', (to_json(expires_at AT TIME ZONE 'UTC') #>> '{}') || 'Z')::text
FROM outbox_pauses
WHERE ($1::text = '' OR sink = $1) AND ($2::bigint = 0 OR id = $2) AND (expires_at IS NULL OR expires_at > clock_timestamp());
