-- A relay serves a sink no longer, of which it holds nothing: others' shares of it are larger from now on. $1 relay, $2 sink
WITH relay AS (
    UPDATE outbox_relays SET sinks = array_remove(sinks, $2::text), settings = settings - $2::text
    WHERE id = $1::text::uuid
    RETURNING id),
ended AS (
    DELETE FROM outbox_cursors c USING relay WHERE c.relay = relay.id AND c.sink = $2::text RETURNING c.*),
--:progress
UPDATE outbox_sinks SET published = published + (SELECT coalesce(sum(published), 0) FROM ended)
WHERE name = $2::text;
