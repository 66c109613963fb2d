-- Keep what was done since the savepoint.
RELEASE SAVEPOINT :outbox_part
