package postgres

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// TestQueueRidesInTheCallersRoundTrip: state and message in one batch, one transaction, and the batch's own statements
// keep their results.
func TestQueueRidesInTheCallersRoundTrip(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	db.Exec(t, `CREATE TABLE `+pgx.Identifier{db.Schema, "orders"}.Sanitize()+` (id int PRIMARY KEY)`)
	w := NewWriter(config(db))
	m := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t"}
	send := func() (receipts []outbox.Receipt, order int, err error) {
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO ` + pgx.Identifier{db.Schema, "orders"}.Sanitize() + ` SELECT count(*) FROM ` + pgx.Identifier{db.Schema, "orders"}.Sanitize() + ` RETURNING id`).
			QueryRow(func(row pgx.Row) error { return row.Scan(&order) })
		if err := w.Queue(t.Context(), b, m, func(r outbox.Receipt) { receipts = append(receipts, r) }); err != nil {
			t.Fatal(err)
		}
		if b.Len() != 2 {
			t.Errorf("the batch has %d statements, want the caller's and one", b.Len())
		}
		return receipts, order, db.Pool.SendBatch(t.Context(), b).Close()
	}
	if receipts, order, err := send(); err != nil || len(receipts) != 1 || receipts[0].ID != m.ID || order != 0 {
		t.Errorf("%v, order %d, %v", receipts, order, err)
	}
	if receipts, _, err := send(); !errors.Is(err, outbox.ErrDuplicateMessage) || receipts != nil {
		t.Errorf("again: %v, %v", receipts, err)
	}
	if n := pgtest.One[int](t, db.Pool, `SELECT count(*) FROM `+pgx.Identifier{db.Schema, "orders"}.Sanitize()); n != 1 {
		t.Errorf("%d orders, want 1: the batch is one transaction", n)
	}
}

// TestWriteIsOneStatement counts what the server is asked.
func TestWriteIsOneStatement(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	counter := &counter{}
	pool := db.As(t, "onward_producer", func(c *pgxpool.Config) { c.ConnConfig.Tracer = counter })
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, n := range []int{1, 2, 1000} {
			for _, serialize := range [][]outbox.Pattern{nil, {">"}} {
				c := config(db)
				c.Serialize = serialize
				ms := slices.Repeat([]outbox.Message{{Topic: "t", Type: "t", Key: "k"}}, n)
				counter.n = 0
				if _, err := NewWriter(c).WriteAll(t.Context(), tx, ms); err != nil {
					return err
				}
				if counter.n != 1 {
					t.Errorf("%d messages, serialize %v: %d statements, want 1", n, serialize, counter.n)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

type counter struct{ n int }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n++
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
