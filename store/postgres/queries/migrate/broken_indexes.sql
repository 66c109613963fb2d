-- Indexes of these names whose concurrent build has failed: they cost every write and serve no read. $1: schema, $2: names.
SELECT i.relname::text
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = i.relnamespace
WHERE n.nspname = $1 AND i.relname = ANY ($2::text[]) AND NOT x.indisvalid
