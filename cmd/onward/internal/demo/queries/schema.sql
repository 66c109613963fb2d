-- The service's own tables, beside the outbox in the same file.
CREATE TABLE orders (
    id          TEXT PRIMARY KEY,
    region      TEXT NOT NULL,
    customer    TEXT NOT NULL,
    total_cents INTEGER NOT NULL,
    state       TEXT NOT NULL
) STRICT;

-- What the proof compares the stream with: a row is there exactly if the transaction of its message was committed.
CREATE TABLE ledger (
    id     TEXT PRIMARY KEY, -- of the message
    key    TEXT NOT NULL,
    n      INTEGER NOT NULL, -- numbers the messages of a key
    digest TEXT NOT NULL     -- SHA-256 of the payload
) STRICT;
