-- Discards the dead or parked message $2 of the sink $1; $3 why, $4 who.
SELECT outbox_discard($1::text, $2::uuid, $3::text, $4::text);
