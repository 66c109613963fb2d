-- Take back what was done since the savepoint, which stays.
ROLLBACK TO SAVEPOINT :outbox_part
