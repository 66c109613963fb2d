-- Write messages and number those of serialised keys.
WITH fresh AS MATERIALIZED (
--:source
),
--:numbered
