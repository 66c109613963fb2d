package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// inTx runs f in a transaction and commits it.
func (f file) inTx(t testing.TB, do func(tx *sql.Tx)) {
	t.Helper()
	tx, err := f.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	do(tx)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestWritersStoreEveryField(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	full := outbox.Message{
		ID: outbox.IDFrom("billing/invoice", "4711"), Topic: "orders.paid", Key: "ünï\\'k", Type: "OrderPaid", ContentType: "application/json",
		Scope: "acme", CorrelationID: "cor", CausationID: "cau", AggregateType: "order", AggregateID: "1", EventID: "e",
		Payload: []byte("\x00\xff'"), Headers: map[string]string{"traceparent": "00-1", "x": "ä\t\"\\u0000"},
		AvailableAt: time.Date(9999, 12, 31, 23, 59, 59, 999_998_001, time.FixedZone("", 7200)),
	}
	bare := outbox.Message{Topic: "t", Type: "T"}
	var receipts []outbox.Receipt
	f.inTx(t, func(tx *sql.Tx) {
		receipts = append(receipts, must[outbox.Receipt](t)(w.Write(t.Context(), tx, full)))
		receipts = append(receipts, must[[]outbox.Receipt](t)(w.WriteAll(t.Context(), tx, []outbox.Message{bare, bare}))...)
	})
	for i, r := range receipts {
		if parsed, err := outbox.ParseReceipt(r.String()); err != nil || parsed != r || r.Seq != int64(i+1) || r.Partition != 0 || r.Tx != 0 {
			t.Errorf("receipt %d is %s, %v", i, r, err)
		}
	}
	got := must[store.MessageInfo](t)(f.admin(t).Message(t.Context(), full.ID)).Message
	if want := full.AvailableAt.UTC().Truncate(time.Microsecond).Add(time.Microsecond); !got.AvailableAt.Equal(want) {
		t.Errorf("available at %s, want %s: not before the time", got.AvailableAt, want)
	}
	got.AvailableAt = full.AvailableAt
	if g, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", full); g != want {
		t.Errorf("got %s, want %s", g, want)
	}
	got = must[store.MessageInfo](t)(f.admin(t).Message(t.Context(), receipts[1].ID)).Message
	if got.ContentType != outbox.DefaultContentType || len(got.Payload) != 0 || got.Headers != nil || !got.AvailableAt.IsZero() {
		t.Errorf("a bare message: %+v", got)
	}
}

func TestSerializeNumbersAKeyWithoutGaps(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, Serialize: []outbox.Pattern{"orders.>"}, IgnoreDuplicates: true})
	m := func(topic, key string) outbox.Message {
		return outbox.Message{ID: outbox.NewID(), Topic: topic, Type: "T", Key: key}
	}
	first := m("orders.paid", "a")
	f.inTx(t, func(tx *sql.Tx) {
		must[outbox.Receipt](t)(w.Write(t.Context(), tx, first))
		must[[]outbox.Receipt](t)(w.WriteAll(t.Context(), tx, []outbox.Message{m("orders.paid", "a"), m("orders.paid", "b"), first, m("orders.sent", "a")}))
		must[[]outbox.Receipt](t)(w.WriteAll(t.Context(), tx, []outbox.Message{m("orders", "a"), m("orders.paid", "")}))
	})
	tx := must[*sql.Tx](t)(f.db.BeginTx(t.Context(), nil))
	must[outbox.Receipt](t)(w.Write(t.Context(), tx, m("orders.paid", "a")))
	_ = tx.Rollback()
	f.inTx(t, func(tx *sql.Tx) { must[outbox.Receipt](t)(w.Write(t.Context(), tx, m("orders.paid", "a"))) })
	if got := one[string](t, f, `SELECT group_concat(partition_key || key_seq) FROM (SELECT * FROM outbox_messages ORDER BY seq)`); got != "a1,a2,b1,a3,a0,0,a4" {
		t.Errorf("numbers %s", got)
	}
}

// SQLite undoes the statement alone that was refused, so the writer undoes its others; the transaction goes on.
func TestARefusedWriteLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, Serialize: []outbox.Pattern{"s"}})
	m := func(topic, name string) outbox.Message {
		return outbox.Message{ID: outbox.IDFrom("test", name), Topic: topic, Type: "T", Key: "k"}
	}
	f.inTx(t, func(tx *sql.Tx) {
		must[outbox.Receipt](t)(w.Write(t.Context(), tx, m("t", "a")))
		_, err := w.WriteAll(t.Context(), tx, []outbox.Message{m("t", "b"), m("t", "c"), m("t", "a")})
		if !errors.Is(err, outbox.ErrDuplicateMessage) || !strings.Contains(err.Error(), m("t", "a").ID.String()) {
			t.Errorf("%v, want ErrDuplicateMessage that names the id", err)
		}
		if _, err := w.Write(t.Context(), tx, m("s", "a")); !errors.Is(err, outbox.ErrDuplicateMessage) {
			t.Errorf("%v, want ErrDuplicateMessage", err)
		}
		must[outbox.Receipt](t)(w.Write(t.Context(), tx, m("s", "d")))
	})
	if got := one[string](t, f, `SELECT group_concat(id || key_seq) FROM (SELECT * FROM outbox_messages ORDER BY seq)`); got != m("", "a").ID.String()+"0,"+m("", "d").ID.String()+"1" {
		t.Errorf("messages %s", got)
	}
	if n := one[int](t, f, `SELECT max(seq) FROM outbox_messages`); n != 2 {
		t.Errorf("the last number is %d, want 2", n)
	}
}

// An id stays taken while its message is parked or dead, though retention may have deleted it from the log.
func TestAnIDIsTakenWhileItsMessageIsParkedOrDead(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 3)
	_, s := f.joined(t, aRelay())
	page := must[store.Page](t)(s.Read(t.Context(), aRoom))
	verdict := func(i int, to store.To) store.Verdict {
		r := page.Parts[0].Records[i]
		return store.Verdict{Seq: r.Seq, ID: r.ID, Key: r.Key, To: to, Reason: store.ReasonRetry, Due: time.Hour}
	}
	must[store.Settled](t)(s.Settle(t.Context(), store.Settlement{
		Done: []store.Done{{Read: page.No, N: 3}}, Verdicts: []store.Verdict{verdict(0, store.Park), verdict(1, store.Dead)},
	}))
	f.exec(t, `DELETE FROM outbox_messages`)
	strict := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	ignoring := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, IgnoreDuplicates: true})
	for i, r := range page.Parts[0].Records {
		f.inTx(t, func(tx *sql.Tx) {
			m := outbox.Message{ID: r.ID, Topic: "again", Type: "T"}
			_, err := strict.Write(t.Context(), tx, m)
			if gone := i == 2; gone != (err == nil) || err != nil && !errors.Is(err, outbox.ErrDuplicateMessage) {
				t.Errorf("message %d: %v", i, err)
			}
			if receipt, err := ignoring.Write(t.Context(), tx, m); err != nil || i < 2 && receipt.Seq != r.Seq {
				t.Errorf("message %d, ignoring: %s, %v", i, receipt, err)
			}
		})
		m, err := f.admin(t).Message(t.Context(), r.ID)
		if i < 2 && (err != nil || m.Topic != "orders" || !slices.Equal(m.Payload, r.Payload)) {
			t.Errorf("message %d is shown as %+v, %v", i, m.Record, err)
		}
	}
}

func TestWritersSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	good := outbox.Message{Topic: "t", Type: "T"}
	late := good
	late.AvailableAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	write := func(c WriterConfig, db *sql.DB, m outbox.Message) error {
		t.Helper()
		tx := must[*sql.Tx](t)(db.BeginTx(t.Context(), nil))
		defer func() { _ = tx.Rollback() }()
		_, err := NewSQLWriter(c).Write(t.Context(), tx, m)
		return err
	}
	ours := WriterConfig{TablePrefix: testPrefix}
	old := newOutbox(t)
	old.exec(t, `DROP TABLE outbox_messages; CREATE TABLE outbox_messages (seq INTEGER PRIMARY KEY, id TEXT)`)
	_, none := NewSQLWriter(ours).Write(t.Context(), nil, good)
	for name, c := range map[string]struct {
		got  error
		want *outbox.Error
	}{
		"no tables":  {write(WriterConfig{}, f.db, good), store.ErrSchemaMissing},
		"old tables": {write(ours, old.db, good), store.ErrSchemaOld},
		"year 10000": {write(ours, f.db, late), outbox.ErrFieldInvalid},
		"prefix":     {write(WriterConfig{TablePrefix: "A"}, f.db, good), outbox.ErrIdentifierInvalid},
		"serialize":  {write(WriterConfig{Serialize: []outbox.Pattern{"a..b"}}, f.db, good), outbox.ErrConfigInvalid},
		"rules":      {write(WriterConfig{TablePrefix: testPrefix, Rules: outbox.Rules{RequireKey: []outbox.Pattern{"t"}}}, f.db, good), outbox.ErrKeyRequired},
		"nil":        {none, outbox.ErrNoTransaction},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %s", name, c.got, c.want.Code)
		}
	}
}

// A transaction that begins without the write lock, reads, and writes after another one has written is refused by SQLite at
// once: its reads are out of date. OpenDB's transactions begin with the lock.
func TestATransactionThatReadFirstIsBusy(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	lazy := must[*sql.DB](t)(sql.Open("sqlite", deferred(f.path)))
	t.Cleanup(func() { _ = lazy.Close() })
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	tx := must[*sql.Tx](t)(lazy.BeginTx(t.Context(), nil))
	defer func() { _ = tx.Rollback() }()
	var n int
	if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_schema`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	f.inTx(t, func(tx *sql.Tx) {
		must[outbox.Receipt](t)(w.Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "T"}))
	})
	_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "T"})
	if !errors.Is(err, ErrBusy) || outbox.Hint(err) == "" {
		t.Errorf("%v, want ErrBusy with a hint", err)
	}
}

func ExampleSQLWriter() {
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
	out := NewSQLWriter(WriterConfig{})
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	// ... tx.ExecContext(ctx, `UPDATE orders SET state = 'paid' WHERE id = ?`, id)
	receipt, err := out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "4711", Type: "OrderPaid", Payload: []byte(`{}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("message", receipt.Seq, tx.Commit())
	// Output: message 1 <nil>
}
