-- A part of a transaction that may be rolled back alone.
SAVEPOINT :outbox_part
