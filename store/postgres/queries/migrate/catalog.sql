-- What there is of an outbox, one row an object: kind, name, facts. $1: schema, $2: table prefix. What others have added to
-- our tables (columns, indexes, triggers) is listed too; whoever compares leaves it alone.
WITH ours AS (
    SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND starts_with(c.relname::text, $2)),
tables AS (
    SELECT * FROM ours WHERE relkind IN ('r', 'p'))
SELECT 'table' AS kind, relname::text AS name, CASE relpersistence WHEN 'u' THEN 'unlogged' ELSE 'logged' END AS facts FROM tables
UNION ALL
SELECT 'setting', t.relname || ' ' || o.name, o.value
FROM tables t
CROSS JOIN LATERAL (
    SELECT option_name AS name, option_value AS value FROM pg_options_to_table(t.reloptions)
    UNION ALL
    SELECT 'toast.' || option_name, option_value FROM pg_class c, pg_options_to_table(c.reloptions) WHERE c.oid = t.reltoastrelid) o
UNION ALL
SELECT 'column', t.relname || '.' || a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
    CASE WHEN a.attidentity <> '' THEN 'IDENTITY ' || a.attidentity::text END, CASE WHEN a.attgenerated <> '' THEN 'GENERATED' END,
    CASE WHEN a.atthasdef THEN 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) END)
FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT 'constraint', c.conname, concat_ws(' ', 'ON', t.relname, pg_get_constraintdef(c.oid))  -- says NOT VALID itself
FROM tables t JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype IN ('c', 'f', 'p', 'u')
UNION ALL
SELECT 'index', i.relname, CASE WHEN x.indisvalid AND x.indisready THEN pg_get_indexdef(x.indexrelid) ELSE 'INVALID' END
FROM tables t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.indexrelid AND c.contype IN ('p', 'u'))
UNION ALL
SELECT 'trigger', g.tgname, concat_ws(' ', pg_get_triggerdef(g.oid), CASE g.tgenabled WHEN 'O' THEN 'ENABLED' WHEN 'A' THEN 'ENABLED' ELSE 'DISABLED' END)
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION ALL
SELECT 'sequence', o.relname, concat_ws(' ', format_type(s.seqtypid, NULL), 'START', s.seqstart, 'INCREMENT', s.seqincrement, 'MIN', s.seqmin, 'MAX', s.seqmax,
    'CACHE', s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' END)
FROM ours o JOIN pg_sequence s ON s.seqrelid = o.oid
UNION ALL
SELECT 'view', v.relname, (SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum)
                           FROM pg_attribute a WHERE a.attrelid = v.oid AND a.attnum > 0)
FROM ours v WHERE v.relkind = 'v'
UNION ALL
SELECT 'function', p.proname, concat_ws(' ', pg_get_function_arguments(p.oid), 'RETURNS', pg_get_function_result(p.oid), l.lanname,
    'VOLATILITY', p.provolatile, 'PARALLEL', p.proparallel, CASE WHEN p.prosecdef THEN 'SECURITY DEFINER' END, array_to_string(p.proconfig, ' '))
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
WHERE n.nspname = $1 AND starts_with(p.proname::text, $2)
UNION ALL
SELECT 'body', p.proname, p.prosrc
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND starts_with(p.proname::text, $2)
ORDER BY 1, 2
