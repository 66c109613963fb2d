-- The registered relays; live: its lease has not run out.
SELECT r.id, r.name, r.host, r.version, r.pid, r.sinks,
       (SELECT count(*) FROM outbox_partitions p WHERE p.relay = r.id),
       r.draining, r.leased_until > clock_timestamp(), r.started_at, r.heartbeat_at, r.leased_until, r.lease
FROM outbox_relays r
ORDER BY r.name;
