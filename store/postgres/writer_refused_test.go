package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

func TestAWriteThatCannotBeWritesNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	w, s := NewWriter(config(db)), NewSQLWriter(config(db))
	std := pgtest.Standard(t, db.Pool)
	m := outbox.Message{Topic: "t", Type: "t"}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	ended, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := ended.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	endedSQL, err := std.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := endedSQL.Rollback(); err != nil {
		t.Fatal(err)
	}
	open, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	openSQL, err := std.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer openSQL.Rollback()
	both := func(ctx context.Context, tx pgx.Tx, sqlTx *sql.Tx, m outbox.Message) [2]error {
		_, one := w.Write(ctx, tx, m)
		_, two := s.Write(ctx, sqlTx, m)
		return [2]error{one, two}
	}
	for _, c := range []struct {
		name string
		errs [2]error
		want error
	}{
		{"ended transaction", both(t.Context(), ended, endedSQL, m), outbox.ErrNoTransaction},
		{"no transaction", both(t.Context(), nil, nil, m), outbox.ErrNoTransaction},
		{"nil pointer", both(t.Context(), (*pgxpool.Tx)(nil), nil, m), outbox.ErrNoTransaction},
		{"cancelled context", both(cancelled, open, openSQL, m), context.Canceled},
		{"no topic", both(t.Context(), open, openSQL, outbox.Message{Type: "t"}), outbox.ErrTopicRequired},
		{"year 10000", both(t.Context(), open, openSQL, outbox.Message{Topic: "t", Type: "t", AvailableAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}), outbox.ErrFieldInvalid},
	} {
		for i, err := range c.errs {
			if !errors.Is(err, c.want) {
				t.Errorf("%s, writer %d: %v, want %v", c.name, i, err, c.want)
			}
		}
	}
	if err := w.Queue(t.Context(), nil, m, nil); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("no batch: %v", err)
	}
	if err := w.Queue(cancelled, &pgx.Batch{}, m, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("queue with a cancelled context: %v", err)
	}
	// One bad message refuses all, and the transaction goes on.
	if _, err := w.WriteAll(t.Context(), open, []outbox.Message{m, {Topic: "t"}}); !errors.Is(err, outbox.ErrTypeRequired) {
		t.Errorf("one bad message: %v", err)
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Errorf("the transaction did not survive: %v", err)
	}
	if n := len(rowsOf(t, db, "true")); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	// A transaction that an earlier statement has broken.
	err = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, _ = tx.Exec(t.Context(), "SELECT 1/0")
		_, err := w.Write(t.Context(), tx, m)
		if sqlState(err) != "25P02" {
			t.Errorf("broken transaction: %v", err)
		}
		return err
	})
	if err == nil {
		t.Error("the broken transaction was committed")
	}
}

func TestZeroMessagesAreNoRoundTrip(t *testing.T) {
	t.Parallel()
	if r, err := NewWriter(WriterConfig{}).WriteAll(t.Context(), nil, nil); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := NewSQLWriter(WriterConfig{}).WriteAll(t.Context(), nil, []outbox.Message{}); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
}

func TestABadConfigurationIsAnErrorOfEveryWrite(t *testing.T) {
	t.Parallel()
	c := WriterConfig{TablePrefix: `a"; DROP TABLE x; --`, Rules: outbox.Rules{MaxPayload: -1}, Serialize: []outbox.Pattern{""}}
	w, s := NewWriter(c), NewSQLWriter(c)
	_, one := w.Write(t.Context(), nil, outbox.Message{})
	_, two := s.Write(t.Context(), nil, outbox.Message{})
	_, none := w.WriteAll(t.Context(), nil, nil)
	for i, err := range []error{w.Validate(), s.Validate(), one, two, none, w.Queue(t.Context(), &pgx.Batch{}, outbox.Message{}, nil)} {
		if !errors.Is(err, outbox.ErrIdentifierInvalid) || !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(fmt.Sprint(err), "MaxPayload") {
			t.Errorf("%d: %v, want all faults", i, err)
		}
	}
}

func TestAWriteBeforeTheMigrationSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := NewWriter(config(db)).Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "t"})
		return err
	})
	if !errors.Is(err, store.ErrSchemaMissing) || !strings.Contains(outbox.Hint(err), "onward migrate up") {
		t.Errorf("%v", err)
	}
}

// TestAnSQLTransactionEndsWithItsContext: database/sql rolls it back by itself, and the writer says so.
func TestAnSQLTransactionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx, err := pgtest.Standard(t, db.Pool).BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := NewSQLWriter(config(db))
	if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "t"}); err != nil {
		t.Fatal(err)
	}
	cancel()
	pgtest.Eventually(t, "the transaction ends", func() bool {
		_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "t"})
		return errors.Is(err, outbox.ErrNoTransaction)
	})
	if n := len(rowsOf(t, db, "true")); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestABatchThatCannotBeSentWritesNothing: the message was queued, and then the transaction or the context ended.
func TestABatchThatCannotBeSentWritesNothing(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	w := NewWriter(config(db))
	queued := func() *pgx.Batch {
		b := &pgx.Batch{}
		err := w.Queue(t.Context(), b, outbox.Message{Topic: "t", Type: "t"}, func(r outbox.Receipt) { t.Errorf("a receipt: %v", r) })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tx.SendBatch(cancelled, queued()).Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	_ = tx.Rollback(t.Context())
	if err := tx.SendBatch(t.Context(), queued()).Close(); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("ended: %v", err)
	}
	if n := len(rowsOf(t, db, "true")); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestAWriteThatIsCancelledWhileItWaitsWritesNothing: another transaction has the same id and has not ended.
func TestAWriteThatIsCancelledWhileItWaitsWritesNothing(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	std := pgtest.Standard(t, db.Pool)
	m := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t"}
	first, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewWriter(config(db)).Write(t.Context(), first, m); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(ctx context.Context) error{
		"pgx.Tx": func(ctx context.Context) error {
			return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				_, err := NewWriter(config(db)).Write(ctx, tx, m)
				return err
			})
		},
		"pgx.Batch": func(ctx context.Context) error {
			b := &pgx.Batch{}
			if err := NewWriter(config(db)).Queue(ctx, b, m, nil); err != nil {
				return err
			}
			return db.Pool.SendBatch(ctx, b).Close()
		},
		"sql.Tx": func(ctx context.Context) error {
			tx, err := std.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			_, err = NewSQLWriter(config(db)).Write(ctx, tx, m)
			if e := tx.Commit(); err == nil || e == nil {
				t.Errorf("the write ended with %v, the commit with %v", err, e)
			}
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- write(ctx) }()
		pgtest.Eventually(t, name+" waits", func() bool {
			return pgtest.One[bool](t, db.Pool, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = $1 AND NOT l.granted)`, db.Schema)
		})
		cancel()
		pgtest.Eventually(t, name+" ends", func() bool { return len(done) > 0 })
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		pgtest.Eventually(t, name+" has left", func() bool {
			return pgtest.One[int](t, db.Pool, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = $1 AND NOT l.granted`, db.Schema) == 0
		})
	}
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(rowsOf(t, db, "true")); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}
