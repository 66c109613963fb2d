-- Pauses of the sink $1 that have ended and hold nothing any more.
SELECT outbox_sweep_pauses($1::text);
