-- The same, and the rows are gone. $1 how many
WITH page AS (SELECT seq FROM rows ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM rows r USING page WHERE r.seq = page.seq RETURNING r.seq, r.key, r.payload
