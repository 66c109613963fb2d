-- Write those messages whose id was not written before, and number those of serialised keys. lock_keys came first: what
-- this statement sees holds until the end, so that no number is given to a message that is not written.
WITH source AS MATERIALIZED (
--:source
),
known AS MATERIALIZED (
    SELECT w.id FROM outbox_written(ARRAY(SELECT source.id FROM source)) w),
fresh AS MATERIALIZED (
    SELECT * FROM source WHERE id NOT IN (SELECT known.id FROM known)),
--:numbered
