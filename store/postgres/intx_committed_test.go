package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// Whoever is to be told of commits is told of each transaction once, when it is visible, and of none that was rolled back.
func TestCommittedIsCalledAfterEachCommit(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	calls, visible := 0, 0
	c := WriterConfig{Schema: db.Schema, TablePrefix: db.Prefix, Committed: func() {
		calls++
		visible = len(rowsOf(t, db, "true"))
	}}
	w, sw := NewWriter(c), NewSQLWriter(c)
	add := func(ctx context.Context) error { return outbox.Add(ctx, outbox.Message{Topic: "t", Type: "T"}) }
	failed := errors.New("no")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.InTx(t.Context(), db.Pool, func(ctx context.Context, _ pgx.Tx) error {
		must(w.InTx(ctx, db.Pool, func(ctx context.Context, _ pgx.Tx) error { return add(ctx) }))
		if calls != 0 {
			t.Error("an inner InTx says that it is committed")
		}
		return add(ctx)
	}))
	if calls != 1 || visible != 2 {
		t.Errorf("%d calls, which saw %d messages; want 1 and 2", calls, visible)
	}
	if err := w.InTx(t.Context(), db.Pool, func(context.Context, pgx.Tx) error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	must(sw.InTx(t.Context(), pgtest.Standard(t, db.Pool), func(ctx context.Context, _ *sql.Tx) error { return add(ctx) }))
	if calls != 2 || visible != 3 {
		t.Errorf("%d calls, the last saw %d messages; want 2 and 3", calls, visible)
	}
}
