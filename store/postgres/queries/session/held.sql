SELECT count(*) FROM outbox_partitions WHERE relay = $1::text::uuid;
