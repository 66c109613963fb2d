-- The first row of each key that nobody has locked: in order within a key. $1 how many
WITH page AS (
    SELECT seq FROM rows r
    WHERE NOT published AND NOT EXISTS (SELECT FROM rows b WHERE b.key = r.key AND NOT b.published AND b.seq < r.seq)
    ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE rows r SET published = true FROM page WHERE r.seq = page.seq RETURNING r.seq, r.key, r.payload
