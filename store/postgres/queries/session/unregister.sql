WITH cursors AS (DELETE FROM outbox_cursors WHERE relay = $1::text::uuid)
DELETE FROM outbox_relays WHERE id = $1::text::uuid;
