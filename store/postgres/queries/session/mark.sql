-- The settings of a transaction, and: ask writers to notify, for $1 milliseconds from now: see outbox_wake. False: this role has no right to. The sequence is in the
-- server's log, and this transaction must not wait for the disk.
:settings, current_setting('transaction_isolation'),
    CASE WHEN has_sequence_privilege('outbox_asleep', 'UPDATE')
    THEN setval('outbox_asleep', (((date_part('epoch', clock_timestamp()) * 1000)::bigint + $1::bigint) << 16) | (4095 << 4)) END IS NOT NULL,
    set_config('synchronous_commit', 'off', true);
