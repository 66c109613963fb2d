INSERT INTO orders (id, region, customer, total_cents, state)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET total_cents = excluded.total_cents, state = excluded.state
