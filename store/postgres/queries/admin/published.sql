-- Between which times each sink published the message $1.
SELECT sink, after, before FROM outbox_published($1::uuid) ORDER BY sink;
