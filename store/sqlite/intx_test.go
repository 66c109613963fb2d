package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

func added(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: name}); err != nil {
		t.Errorf("add %s: %v", name, err)
	}
}

// wantTypes wants these messages in the log, in their order.
func (f file) wantTypes(t *testing.T, want ...string) {
	t.Helper()
	rows, err := f.db.QueryContext(t.Context(), `SELECT type FROM `+testPrefix+`messages ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var got []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		got = append(got, text)
	}
	if !slices.Equal(got, want) || rows.Err() != nil {
		t.Errorf("the log has %q, want %q (%v)", got, want, rows.Err())
	}
}

func TestInTxWritesWhatWasAddedBehindWhatWasWritten(t *testing.T) {
	t.Parallel()
	f, w := newOutbox(t), NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	var kept context.Context
	err := w.InTx(t.Context(), f.db, func(ctx context.Context, tx *sql.Tx) error {
		kept = ctx //nolint:fatcontext // to use it when it is over
		added(ctx, t, "added")
		added(ctx, t, "added then")
		_, err := w.Write(ctx, tx, outbox.Message{Topic: "t", Type: "written"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.wantTypes(t, "written", "added", "added then")
	for what, ctx := range map[string]context.Context{"outside": t.Context(), "afterwards": kept} {
		if err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: "T"}); !errors.Is(err, outbox.ErrNoTransaction) || outbox.Hint(err) == "" {
			t.Errorf("add %s: %v, want ErrNoTransaction with a hint", what, err)
		}
	}
	err = w.InTx(kept, f.db, func(context.Context, *sql.Tx) error { return nil })
	if !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("InTx in an ended one: %v", err)
	}
}

func TestInTxRollsBackWhatFails(t *testing.T) {
	t.Parallel()
	f, w := newOutbox(t), NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	cause := errors.New("no stock")
	id := outbox.NewID()
	in := func(fn func(ctx context.Context, tx *sql.Tx) error) error { return w.InTx(t.Context(), f.db, fn) }
	first := func(ctx context.Context, _ *sql.Tx) error {
		return outbox.Add(ctx, outbox.Message{ID: id, Topic: "t", Type: "first"})
	}
	if err := in(first); err != nil {
		t.Fatal(err)
	}
	if err := in(first); !errors.Is(err, outbox.ErrDuplicateMessage) {
		t.Errorf("the same id again: %v", err)
	}
	if err := in(func(ctx context.Context, _ *sql.Tx) error { added(ctx, t, "failed"); return cause }); err != cause { //nolint:errorlint // as it is
		t.Errorf("got %v, want the function's own error", err)
	}
	if err := in(func(ctx context.Context, tx *sql.Tx) error {
		added(ctx, t, "broken")
		_, err := tx.ExecContext(ctx, "nonsense")
		return err
	}); err == nil {
		t.Error("nonsense is done")
	}
	func() {
		defer func() { _ = recover() }()
		_ = in(func(ctx context.Context, _ *sql.Tx) error { added(ctx, t, "panicked"); panic("out of stock") })
	}()
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.InTx(ctx, f.db, func(ctx context.Context, _ *sql.Tx) error { added(ctx, t, "cancelled"); cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := in(func(ctx context.Context, _ *sql.Tx) error { added(ctx, t, "last"); return nil }); err != nil {
		t.Error(err)
	}
	f.wantTypes(t, "first", "last")
}

func TestAnInnerInTxIsAPartOfTheOuterOne(t *testing.T) {
	t.Parallel()
	commits := 0
	f, w := newOutbox(t), NewSQLWriter(WriterConfig{TablePrefix: testPrefix, Committed: func() { commits++ }})
	cause := errors.New("no stock")
	part := func(ctx context.Context, name string, result error) error {
		return w.InTx(ctx, f.db, func(ctx context.Context, tx *sql.Tx) error {
			added(ctx, t, name+" added")
			_, err := w.Write(ctx, tx, outbox.Message{Topic: "t", Type: name})
			return errors.Join(err, result)
		})
	}
	outer := func(result error) error {
		return w.InTx(t.Context(), f.db, func(ctx context.Context, outerTx *sql.Tx) error {
			added(ctx, t, "outer")
			if err := part(ctx, "kept", nil); err != nil {
				t.Errorf("inner: %v", err)
			}
			if err := part(ctx, "undone", cause); !errors.Is(err, cause) {
				t.Errorf("inner: %v", err)
			}
			err := w.InTx(ctx, f.db, func(ctx context.Context, tx *sql.Tx) error {
				if tx != outerTx {
					t.Error("the inner function has another transaction")
				}
				if err := part(ctx, "innermost, undone", cause); !errors.Is(err, cause) {
					t.Errorf("innermost: %v", err)
				}
				return part(ctx, "innermost", nil)
			})
			if err != nil {
				t.Errorf("inner: %v", err)
			}
			func() {
				defer func() { _ = recover() }()
				_ = w.InTx(ctx, f.db, func(ctx context.Context, _ *sql.Tx) error { _ = part(ctx, "panicked", nil); panic("out of stock") })
			}()
			return result
		})
	}
	if err := outer(cause); !errors.Is(err, cause) {
		t.Errorf("outer: %v", err)
	}
	f.wantTypes(t)
	if err := outer(nil); err != nil {
		t.Errorf("outer: %v", err)
	}
	f.wantTypes(t, "kept", "kept added", "innermost", "innermost added", "outer")
	if commits != 1 {
		t.Errorf("%d commits were told, want that of the outer one", commits)
	}
}

func TestInTxHoldsAddedMessagesToTheWritersRulesOnce(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	calls := 0
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, Rules: outbox.Rules{
		RequireKey: []outbox.Pattern{"t"}, Enrich: func(context.Context, *outbox.Message) { calls++ },
	}})
	err := w.InTx(t.Context(), f.db, func(ctx context.Context, _ *sql.Tx) error {
		if err := outbox.Add(ctx, outbox.Message{Topic: "t", Type: "T"}); !errors.Is(err, outbox.ErrKeyRequired) {
			t.Errorf("without a key: %v", err)
		}
		calls = 0
		return outbox.Add(ctx, outbox.Message{Topic: "t", Key: "k", Type: "keyed"})
	})
	if err != nil || calls != 1 {
		t.Errorf("%v; the hook was called %d times, want once", err, calls)
	}
	f.wantTypes(t, "keyed")
}

func TestGoroutinesMayAddToOneTransaction(t *testing.T) {
	t.Parallel()
	f, w := newOutbox(t), NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	err := w.InTx(t.Context(), f.db, func(ctx context.Context, _ *sql.Tx) error {
		var adding sync.WaitGroup
		for range 20 {
			adding.Go(func() { added(ctx, t, "T") })
		}
		adding.Wait()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	f.wantTypes(t, slices.Repeat([]string{"T"}, 20)...)
}

func TestInTxRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	never := func(context.Context, *sql.Tx) error { t.Error("the function is called"); return nil }
	if err := InTx(t.Context(), nil, never); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("no database: %v", err)
	}
	if err := NewSQLWriter(WriterConfig{TablePrefix: "Order;"}).InTx(t.Context(), f.db, never); !errors.Is(err, outbox.ErrIdentifierInvalid) {
		t.Errorf("a bad prefix: %v", err)
	}
	err := InTx(t.Context(), f.db, func(ctx context.Context, _ *sql.Tx) error { added(ctx, t, "T"); return nil })
	if strings.HasPrefix(testPrefix, "outbox_") != (err == nil) {
		t.Errorf("in the default tables: %v", err)
	}
}

// Code below adds messages without a transaction in its hands; they are written and committed with the state.
func ExampleInTx() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(folder) }()
	db, err := OpenDB(ctx, "sqlite:"+folder+"/orders.db", FileConfig{Create: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if err := Migrate(ctx, db, MigrateConfig{}); err != nil {
		fmt.Println(err)
		return
	}
	pay := func(ctx context.Context, order string) error { // anywhere below
		return outbox.Add(ctx, outbox.Message{Topic: "orders", Key: order, Type: "OrderPaid", Payload: []byte(`{}`)})
	}
	err = InTx(ctx, db, func(ctx context.Context, _ *sql.Tx) error {
		// tx.ExecContext(ctx, `UPDATE orders SET state = 'paid' WHERE id = ?`, order)
		return pay(ctx, "4711")
	})
	fmt.Println(err, outbox.CodeOf(pay(ctx, "4712")))
	// Output: <nil> onward/no-transaction
}
