-- The failed attempts of message $2 in sink $1 as they were kept, oldest first.
SELECT at, relay, attempt, outcome, code, error, duration
FROM outbox_attempts
WHERE sink = $1::text AND id = $2::uuid
ORDER BY attempt;
