-- Before anything else of a settle that changes lines: whoever changes one of these partitions' lines has ended, and the
-- statements that follow see what was done. $1 sink, $2 partitions
SELECT outbox_lock_lines($1, $2::int[]);
