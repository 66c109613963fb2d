-- Whether this role may ask writers to notify.
SELECT has_sequence_privilege('outbox_asleep', 'UPDATE');
