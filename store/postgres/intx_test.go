package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// inTx is InTx of either library: exec runs a statement in its transaction, write writes a message, and written says
// what it wrote so far.
type inTx func(ctx context.Context, fn func(ctx context.Context, tx anyTx) error) error

type anyTx struct {
	exec    func(ctx context.Context, sql string) error
	write   func(ctx context.Context, m outbox.Message) error
	written func(ctx context.Context) ([]outbox.Record, error)
}

// onBoth runs a test with pgx and with database/sql, each on an outbox of its own.
func onBoth(t *testing.T, f func(t *testing.T, db *pgtest.DB, in inTx)) {
	t.Helper()
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		db := newOutbox(t, 64)
		f(t, db, pgxInTx(config(db), db.Pool))
	})
	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		db := newOutbox(t, 64)
		std := pgtest.Standard(t, db.Pool)
		t.Cleanup(func() { _ = std.Close() })
		f(t, db, sqlInTx(config(db), std))
	})
}

func pgxInTx(c WriterConfig, db Beginner) inTx {
	w := NewWriter(c)
	return func(ctx context.Context, fn func(context.Context, anyTx) error) error {
		return w.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			return fn(ctx, anyTx{
				exec:    func(ctx context.Context, sql string) error { _, err := tx.Exec(ctx, sql); return err },
				write:   func(ctx context.Context, m outbox.Message) error { _, err := w.Write(ctx, tx, m); return err },
				written: func(ctx context.Context) ([]outbox.Record, error) { return w.Written(ctx, tx) },
			})
		})
	}
}

func sqlInTx(c WriterConfig, db *sql.DB) inTx {
	w := NewSQLWriter(c)
	return func(ctx context.Context, fn func(context.Context, anyTx) error) error {
		return w.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) error {
			return fn(ctx, anyTx{
				exec:    func(ctx context.Context, sql string) error { _, err := tx.ExecContext(ctx, sql); return err },
				write:   func(ctx context.Context, m outbox.Message) error { _, err := w.Write(ctx, tx, m); return err },
				written: func(ctx context.Context) ([]outbox.Record, error) { return w.Written(ctx, tx) },
			})
		})
	}
}

func add(ctx context.Context, t testing.TB, types ...string) {
	t.Helper()
	for _, name := range types {
		if err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: name}); err != nil {
			t.Errorf("add %s: %v", name, err)
		}
	}
}

// committed wants these types in the outbox, in this order.
func committed(t testing.TB, db *pgtest.DB, want ...string) {
	t.Helper()
	var got []string
	for _, r := range rowsOf(t, db, "true") {
		got = append(got, r.Type)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the outbox has %v, want %v", got, want)
	}
	if n := pgtest.One[int](t, db.Pool, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state LIKE 'idle in transaction%'`, db.Schema); n != 0 {
		t.Errorf("%d transactions are open", n)
	}
}

func TestInTxWritesWhatWasAddedBehindWhatWasWritten(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		db.Exec(t, sqlOf(db, `CREATE TABLE outbox_orders (id int)`))
		err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			add(ctx, t, "added 1", "added 2")
			if err := tx.exec(ctx, sqlOf(db, `INSERT INTO outbox_orders VALUES (1)`)); err != nil {
				return err
			}
			if err := tx.write(ctx, outbox.Message{Topic: "t", Type: "written"}); err != nil {
				return err
			}
			add(ctx, t, "added 3")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		committed(t, db, "written", "added 1", "added 2", "added 3")
		if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT count(*) FROM outbox_orders`)); n != 1 {
			t.Errorf("%d orders", n)
		}
		if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT count(DISTINCT txid) FROM outbox_messages`)); n != 1 {
			t.Errorf("written by %d transactions", n)
		}
		if err := in(t.Context(), func(context.Context, anyTx) error { return nil }); err != nil {
			t.Errorf("nothing added: %v", err)
		}
	})
}

func TestInTxHoldsAddedMessagesToTheWritersRulesOnce(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	c := config(db)
	type request struct{}
	c.Rules = outbox.Rules{RequireKey: []outbox.Pattern{"orders"}, Enrich: func(ctx context.Context, m *outbox.Message) {
		id, _ := ctx.Value(request{}).(string)
		m.CorrelationID += id + ";"
	}}
	err := NewWriter(c).InTx(t.Context(), db.Pool, func(ctx context.Context, _ pgx.Tx) error {
		if err := outbox.Add(ctx, outbox.Message{Topic: "orders", Type: "t"}); !errors.Is(err, outbox.ErrKeyRequired) {
			t.Errorf("no key: %v", err)
		}
		return outbox.Add(context.WithValue(ctx, request{}, "r"), outbox.Message{Topic: "orders", Type: "t", Key: "7"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows := rowsOf(t, db, "true"); len(rows) != 1 || rows[0].CorrelationID != "r;" {
		t.Errorf("%+v, want one message, enriched once by the context of its Add", rows)
	}
}

func TestInTxRollsBackWhatFails(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		cause := errors.New("no stock")
		if err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			add(ctx, t, "added")
			_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "written"})
			return cause
		}); !errors.Is(err, cause) || err.Error() != cause.Error() {
			t.Errorf("%v, want the function's own error", err)
		}
		first := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "first"}
		if err := in(t.Context(), func(ctx context.Context, _ anyTx) error { return outbox.Add(ctx, first) }); err != nil {
			t.Fatal(err)
		}
		if err := in(t.Context(), func(ctx context.Context, _ anyTx) error {
			add(ctx, t, "before the duplicate")
			return outbox.Add(ctx, first)
		}); !errors.Is(err, outbox.ErrDuplicateMessage) {
			t.Errorf("a duplicate: %v", err)
		}
		if err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			add(ctx, t, "in a broken transaction")
			_ = tx.exec(ctx, "SELECT 1/0") // and nobody looks
			return nil
		}); sqlState(err) != "25P02" {
			t.Errorf("a broken transaction: %v", err)
		}
		if err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "in a broken transaction"})
			_ = tx.exec(ctx, "SELECT 1/0")
			return nil
		}); err == nil {
			t.Error("the commit of a broken transaction returned nil")
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := in(ctx, func(ctx context.Context, tx anyTx) error {
			_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "cancelled"})
			cancel()
			return nil
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		committed(t, db, "first")
	})
}

func TestInTxRollsBackAPanicAndAnEndedGoroutine(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		leaked := make(chan context.Context, 1)
		func() {
			defer func() {
				if r := recover(); r != "out of stock" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = in(t.Context(), func(ctx context.Context, tx anyTx) error {
				leaked <- ctx
				add(ctx, t, "added")
				_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "written"})
				panic("out of stock")
			})
		}()
		if err := outbox.Add(<-leaked, outbox.Message{Topic: "t", Type: "t"}); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("added after the panic: %v", err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = in(t.Context(), func(ctx context.Context, tx anyTx) error {
				_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "written"})
				runtime.Goexit() // as t.FailNow does
				return nil
			})
		}()
		<-ended
		committed(t, db)
	})
}

func TestAfterInTxItsContextIsOfNoTransaction(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		contexts := make(chan context.Context, 1)
		if err := in(t.Context(), func(ctx context.Context, _ anyTx) error { contexts <- ctx; return nil }); err != nil {
			t.Fatal(err)
		}
		leaked := <-contexts
		if err := outbox.Add(leaked, outbox.Message{Topic: "t", Type: "t"}); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("add: %v", err)
		}
		if err := in(leaked, func(context.Context, anyTx) error { t.Error("called"); return nil }); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("a further InTx: %v", err)
		}
		committed(t, db)
	})
}

// An inner InTx is a part of the outer one: it is undone alone, and kept by the outer one alone.
func TestAnInnerInTxIsAPartOfTheOuterOne(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		cause := errors.New("no stock")
		part := func(ctx context.Context, name string, result error) error {
			return in(ctx, func(ctx context.Context, tx anyTx) error {
				add(ctx, t, name+" added")
				return errors.Join(tx.write(ctx, outbox.Message{Topic: "t", Type: name}), result)
			})
		}
		outer := func(result error) error {
			return in(t.Context(), func(ctx context.Context, _ anyTx) error {
				add(ctx, t, "outer")
				if err := part(ctx, "kept", nil); err != nil {
					return err
				}
				if err := part(ctx, "undone", cause); !errors.Is(err, cause) {
					t.Errorf("inner: %v", err)
				}
				if err := in(ctx, func(ctx context.Context, tx anyTx) error {
					add(ctx, t, "broken")
					_ = tx.exec(ctx, "SELECT 1/0")
					return nil
				}); sqlState(err) != "25P02" {
					t.Errorf("broken inner: %v", err)
				}
				if err := in(ctx, func(ctx context.Context, tx anyTx) error {
					_ = tx.exec(ctx, "SELECT 1/0") // and nothing is written
					return nil
				}); sqlState(err) != "25P02" {
					t.Errorf("broken inner: %v", err)
				}
				if err := in(ctx, func(ctx context.Context, tx anyTx) error {
					_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "undone with its part"})
					_ = part(ctx, "undone twice", cause)
					return cause
				}); !errors.Is(err, cause) {
					t.Errorf("inner: %v", err)
				}
				if err := in(ctx, func(ctx context.Context, _ anyTx) error {
					if err := part(ctx, "innermost, undone", cause); !errors.Is(err, cause) {
						t.Errorf("innermost: %v", err)
					}
					return part(ctx, "innermost", nil)
				}); err != nil {
					return err
				}
				func() {
					defer func() { _ = recover() }()
					_ = in(ctx, func(ctx context.Context, tx anyTx) error {
						add(ctx, t, "panicked")
						_ = tx.write(ctx, outbox.Message{Topic: "t", Type: "panicked"})
						panic("out of stock")
					})
				}()
				return result
			})
		}
		if err := outer(cause); !errors.Is(err, cause) {
			t.Errorf("outer: %v", err)
		}
		committed(t, db)
		if err := outer(nil); err != nil {
			t.Errorf("outer: %v", err)
		}
		committed(t, db, "kept", "kept added", "innermost", "innermost added", "outer")
	})
}

func TestAnInTxOfAnotherDatabaseIsATransactionOfItsOwn(t *testing.T) {
	t.Parallel()
	db, other := newOutbox(t, 64), newOutbox(t, 64)
	in, inOther := pgxInTx(config(db), db.Pool), pgxInTx(config(other), other.Pool)
	cause := errors.New("no stock")
	if err := in(t.Context(), func(ctx context.Context, _ anyTx) error {
		add(ctx, t, "outer")
		if err := inOther(ctx, func(ctx context.Context, _ anyTx) error {
			add(ctx, t, "other")
			return in(ctx, func(ctx context.Context, _ anyTx) error { add(ctx, t, "part of the outer one"); return nil })
		}); err != nil {
			t.Error(err)
		}
		return cause
	}); !errors.Is(err, cause) {
		t.Error(err)
	}
	committed(t, db)
	committed(t, other, "other")
}

// A rollback and the connection's next user do not suffer from a caller who gives up.
func TestACancelledInTxKeepsItsConnection(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	before := db.Pool.Stat().NewConnsCount()
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := NewWriter(config(db)).InTx(ctx, db.Pool, func(context.Context, pgx.Tx) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		if err := NewWriter(config(db)).InTx(ctx, db.Pool, func(context.Context, pgx.Tx) error { cancel(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := db.Pool.Stat().NewConnsCount() - before; n > 1 {
		t.Errorf("%d new connections", n)
	}
}

func TestInTxOfATransactionIsASavepoint(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	cause := errors.New("no stock")
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		in := pgxInTx(config(db), tx)
		if err := in(t.Context(), func(ctx context.Context, _ anyTx) error { add(ctx, t, "undone"); return cause }); !errors.Is(err, cause) {
			t.Error(err)
		}
		return in(t.Context(), func(ctx context.Context, _ anyTx) error { add(ctx, t, "kept"); return nil })
	}); err != nil {
		t.Fatal(err)
	}
	committed(t, db, "kept")
}

func TestGoroutinesMayAddToOneTransaction(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		if err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			var group sync.WaitGroup
			for g := range 8 {
				group.Go(func() {
					for n := range 50 {
						add(ctx, t, fmt.Sprint(g, " ", n))
					}
				})
			}
			err := tx.exec(ctx, "SELECT 1") // the transaction itself is one goroutine's
			group.Wait()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		next := map[string]int{}
		for _, r := range rowsOf(t, db, "true") {
			g, n, _ := strings.Cut(r.Type, " ")
			if n != fmt.Sprint(next[g]) {
				t.Fatalf("%s of goroutine %s comes where %d should", n, g, next[g])
			}
			next[g]++
		}
		if len(next) != 8 || next["0"] != 50 {
			t.Errorf("%v, want 50 of each", next)
		}
	})
}

// Two transactions of which one has to be tried again: nothing of its first attempt is left, and nothing comes twice.
func TestARetriedInTxLeavesNothingOfItsFirstAttempt(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		db.Exec(t, sqlOf(db, `CREATE TABLE outbox_stock (n int); INSERT INTO outbox_stock VALUES (0)`))
		var group sync.WaitGroup
		var read sync.WaitGroup // both have read before one of them writes
		read.Add(2)
		attempts := make([]int, 2)
		for w := range attempts {
			group.Go(func() {
				once := sync.OnceFunc(func() { read.Done(); read.Wait() })
				for {
					attempts[w]++
					err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
						if err := tx.exec(ctx, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"); err != nil {
							return err
						}
						if err := tx.exec(ctx, sqlOf(db, `SELECT n FROM outbox_stock`)); err != nil {
							return err
						}
						once()
						add(ctx, t, fmt.Sprintf("writer %d", w))
						return tx.exec(ctx, sqlOf(db, `UPDATE outbox_stock SET n = n + 1`))
					})
					if sqlState(err) != "40001" {
						if err != nil {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		group.Wait()
		if attempts[0]+attempts[1] < 3 {
			t.Errorf("attempts %v: nothing had to be tried again", attempts)
		}
		rows := rowsOf(t, db, "true")
		if len(rows) != 2 || rows[0].Type == rows[1].Type {
			t.Errorf("the outbox has %v, want one message of each writer", rows)
		}
	})
}

func TestInTxRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	bad := WriterConfig{Schema: "no such;"}
	never := func(context.Context, pgx.Tx) error { t.Error("called"); return nil }
	neverSQL := func(context.Context, *sql.Tx) error { t.Error("called"); return nil }
	for _, err := range []error{NewWriter(bad).InTx(t.Context(), &pgx.Conn{}, never), NewSQLWriter(bad).InTx(t.Context(), &sql.DB{}, neverSQL)} {
		if !errors.Is(err, outbox.ErrIdentifierInvalid) {
			t.Errorf("a bad schema: %v", err)
		}
	}
	for _, err := range []error{InTx(t.Context(), nil, never), InTx(t.Context(), (*pgx.Conn)(nil), never), InSQLTx(t.Context(), nil, neverSQL)} {
		if !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("no database: %v", err)
		}
	}
}

// InTx and InSQLTx are those of the default schema: the public one, whose tables this server has not.
func TestInTxOfThePackageWritesToTheDefaultTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	std := pgtest.Standard(t, db.Pool)
	defer func() { _ = std.Close() }()
	message := outbox.Message{Topic: "t", Type: "t"}
	for _, err := range []error{
		InTx(t.Context(), db.Pool, func(ctx context.Context, _ pgx.Tx) error { return outbox.Add(ctx, message) }),
		InSQLTx(t.Context(), std, func(ctx context.Context, _ *sql.Tx) error { return outbox.Add(ctx, message) }),
	} {
		if sqlState(err) != "42P01" || !strings.Contains(err.Error(), "public.outbox_messages") {
			t.Errorf("%v, want that public.outbox_messages is missing", err)
		}
	}
}

func TestWrittenReturnsWhatTheTransactionWrote(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, db *pgtest.DB, in inTx) {
		if err := in(t.Context(), func(ctx context.Context, _ anyTx) error { add(ctx, t, "of another transaction"); return nil }); err != nil {
			t.Fatal(err)
		}
		full := outbox.Message{
			ID: outbox.NewID(), Topic: "orders", Key: "k", Type: "OrderPaid", ContentType: "application/json", Scope: "s", CorrelationID: "c",
			CausationID: "d", AggregateType: "e", AggregateID: "f", EventID: "g", Payload: []byte("\x00\xff"), Headers: map[string]string{"h": `"ü"`},
			AvailableAt: time.Date(2099, 1, 2, 3, 4, 5, 6000, time.UTC),
		}
		if err := in(t.Context(), func(ctx context.Context, tx anyTx) error {
			if none, err := tx.written(ctx); err != nil || len(none) != 0 {
				t.Errorf("before: %v, %v", none, err)
			}
			if err := tx.exec(ctx, sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 'plain', '')`)); err != nil {
				return err
			}
			if err := tx.write(ctx, full); err != nil {
				return err
			}
			got, err := tx.written(ctx)
			if err != nil || len(got) != 2 || got[0].Type != "plain" || !got[0].AvailableAt.IsZero() || got[0].Headers != nil {
				t.Fatalf("%+v, %v", got, err)
			}
			r := got[1]
			if want, have := fmt.Sprintf("%+v", full), fmt.Sprintf("%+v", r.Message); have != want {
				t.Errorf("\n got %s\nwant %s", have, want)
			}
			if r.Seq <= got[0].Seq || r.Partition != outbox.PartitionOf("k", r.ID, 64) || time.Since(r.CreatedAt).Abs() > time.Minute || r.CreatedAt.Location() != time.UTC {
				t.Errorf("%+v", r)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}
