INSERT INTO ledger (id, key, n, digest)
VALUES (?, ?, ?, ?)
