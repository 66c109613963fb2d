-- The service's own table: it has nothing to do with the outbox.
CREATE TABLE IF NOT EXISTS orders (
    id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    customer    text        NOT NULL CHECK (customer <> ''),
    total_cents bigint      NOT NULL CHECK (total_cents > 0),
    state       text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paid')),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
