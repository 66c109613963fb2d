-- The token of the server's life, and what was found where the log's rows turned out to be of another server's numbering.
-- $1 the relay's name
SELECT r.token::text, r.report::text FROM outbox_rebase($1) r;
