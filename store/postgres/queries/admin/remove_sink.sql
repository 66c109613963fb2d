-- Forgets the sink $1; $2 why, $3 who.
SELECT outbox_remove_sink($1::text, $2::text, $3::text);
