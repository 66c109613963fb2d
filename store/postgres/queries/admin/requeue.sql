-- Requeues the dead letter $2 of the sink $1; $3 although later ones were published, $4 who.
SELECT outbox_requeue($1::text, $2::uuid, $3::boolean, $4::text);
