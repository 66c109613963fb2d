-- What a bare loop reads: $1 the last number that it has
SELECT no, id, payload FROM plain_rows WHERE no > $1 ORDER BY no LIMIT 1000
