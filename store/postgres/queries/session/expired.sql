-- Relays that others may take over. The second condition: the database's clock went back.
SELECT id::text, name FROM outbox_relays
WHERE id <> $1::text::uuid AND (leased_until < clock_timestamp() OR leased_until > clock_timestamp() + 2 * lease)
ORDER BY leased_until;
