SELECT id, key, n, digest
FROM ledger
ORDER BY rowid
