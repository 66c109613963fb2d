-- Held while a sink is registered: retention does nothing meanwhile, and sees the sink afterwards.
SELECT pg_advisory_xact_lock(hashtext('outbox_sinks'::regclass::oid || ' retention'), -1);
