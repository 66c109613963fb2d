-- Claim a page of rows and mark them: two workers never get the same, and know nothing of keys. $1 how many
WITH page AS (SELECT seq FROM rows WHERE NOT published ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE rows r SET published = true FROM page WHERE r.seq = page.seq RETURNING r.seq, r.key, r.payload
