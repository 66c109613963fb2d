-- A new token where there is none: this life of the server has no memory of cursors yet. Whoever read under the last one
-- reads its cursors again. The first token of an outbox that no sink reads yet is not a new lineage.
WITH token AS (
    INSERT INTO outbox_incarnation (token) VALUES (gen_random_uuid())
    ON CONFLICT (one) DO NOTHING
    RETURNING token),
epochs AS (
    UPDATE outbox_partitions SET epoch = epoch + 1000 WHERE EXISTS (SELECT FROM token) RETURNING 1),
lineage AS (
    UPDATE outbox_meta SET value = (value::bigint + 1)::text
    WHERE name = 'lineage' AND EXISTS (SELECT FROM token) AND EXISTS (SELECT FROM outbox_sinks)
    RETURNING 1)
SELECT EXISTS (SELECT FROM token), EXISTS (SELECT FROM lineage);
