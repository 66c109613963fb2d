-- Lock the row of a relay that is to be taken over, or that leaves ($2). No row: alive, gone, or another is at it.
SELECT id::text FROM outbox_relays
WHERE id = $1::text::uuid
  AND ($2::boolean OR leased_until < clock_timestamp() OR leased_until > clock_timestamp() + 2 * lease)
FOR UPDATE SKIP LOCKED;
