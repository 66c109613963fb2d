-- A new token where there is none: this life of the server has no memory of cursors yet. Whoever read under the last one
-- reads its cursors again. The first token of an outbox that no sink reads yet is not a new lineage. Epochs go on from the clock:
-- two restores of one backup begin with the same ones.
WITH token AS (
    INSERT INTO outbox_incarnation DEFAULT VALUES
    ON CONFLICT (one) DO NOTHING
    RETURNING token),
epochs AS (
    UPDATE outbox_partitions SET epoch = greatest(epoch + 1000, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE EXISTS (SELECT FROM token) RETURNING 1),
lineage AS (
    UPDATE outbox_meta SET value = CASE name WHEN 'lineage' THEN (value::bigint + 1)::text ELSE clock_timestamp()::text END
    WHERE name IN ('lineage', 'incarnated') AND EXISTS (SELECT FROM token) AND EXISTS (SELECT FROM outbox_sinks)
    RETURNING 1),
known AS (
    UPDATE outbox_meta SET value = token.token::text FROM token WHERE name = 'incarnation' RETURNING 1)
SELECT EXISTS (SELECT FROM token), EXISTS (SELECT FROM lineage);
