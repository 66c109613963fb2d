-- Who serves a sink, where that relay or the one that joins does not share, and for how long yet (as in holder.sql). $1 the
-- one that joins, $2 sink, $3 does not share
SELECT id::text, name, host, pid,
       CASE WHEN leased_until > clock_timestamp() + 2 * lease THEN 0
            ELSE greatest(0, extract(epoch FROM leased_until - clock_timestamp()) * 1000000)::bigint END
FROM outbox_relays WHERE id <> $1::text::uuid AND $2::text = ANY (sinks) AND (no_leasing OR $3::boolean)
ORDER BY leased_until DESC LIMIT 1;
