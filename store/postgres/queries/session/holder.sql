-- Who has a name, and for how long yet. A lease that ends later than two leases from now is from before the database's
-- clock went back: it counts as over.
SELECT id::text, host, pid,
       CASE WHEN leased_until > clock_timestamp() + 2 * lease THEN 0
            ELSE greatest(0, extract(epoch FROM leased_until - clock_timestamp()) * 1000000)::bigint END
FROM outbox_relays WHERE name = $1;
