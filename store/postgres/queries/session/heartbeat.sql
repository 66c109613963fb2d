-- One update renews everything that a relay holds. $1 id, $2 token of the incarnation that its memory was built under
WITH beat AS (
    UPDATE outbox_relays SET heartbeat_at = clock_timestamp(), leased_until = clock_timestamp() + lease
    WHERE id = $1::text::uuid AND EXISTS (SELECT FROM outbox_incarnation WHERE token = $2::text::uuid)
    RETURNING 1)
SELECT EXISTS (SELECT FROM beat), EXISTS (SELECT FROM outbox_relays WHERE id = $1::text::uuid);
