-- Ends the pause of $2 $3 of the sink $1; $4 why, $5 who.
SELECT outbox_resume($1::text, $2::text, $3::text, $4::text, $5::text);
