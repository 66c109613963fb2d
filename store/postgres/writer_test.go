package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// access is a way to write: it begins a transaction, hands it to a writer of this configuration, and commits unless there
// was an error.
type access struct {
	name  string
	write func(ctx context.Context, c WriterConfig, ms []outbox.Message) ([]outbox.Receipt, error)
}

// accesses are all writers in all modes of pgx, with the rights of a producer and nothing more.
func accesses(t testing.TB, db *pgtest.DB) []access {
	var all []access
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		pool := producer(t, db, mode)
		all = append(all, access{"pgx " + mode.String(), func(ctx context.Context, c WriterConfig, ms []outbox.Message) (receipts []outbox.Receipt, err error) {
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				receipts, err = NewWriter(c).WriteAll(ctx, tx, ms)
				return err
			})
			return receipts, err
		}}, access{"batch " + mode.String(), func(ctx context.Context, c WriterConfig, ms []outbox.Message) ([]outbox.Receipt, error) {
			receipts, batch, w := make([]outbox.Receipt, len(ms)), &pgx.Batch{}, NewWriter(c)
			for i, m := range ms {
				if err := w.Queue(ctx, batch, m, func(r outbox.Receipt) { receipts[i] = r }); err != nil {
					return nil, err
				}
			}
			return receipts, pool.SendBatch(ctx, batch).Close()
		}})
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		std := pgtest.Standard(t, producer(t, db, mode))
		t.Cleanup(func() { _ = std.Close() })
		all = append(all, access{"database/sql " + mode.String(), func(ctx context.Context, c WriterConfig, ms []outbox.Message) ([]outbox.Receipt, error) {
			tx, err := std.BeginTx(ctx, nil)
			if err != nil {
				return nil, err
			}
			defer tx.Rollback()
			receipts, err := NewSQLWriter(c).WriteAll(ctx, tx, ms)
			if err != nil {
				return nil, err
			}
			return receipts, tx.Commit()
		}})
	}
	return all
}

func producer(t testing.TB, db *pgtest.DB, mode pgx.QueryExecMode) *pgxpool.Pool {
	return db.As(t, "onward_producer", func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
}

func onEach(t *testing.T, f func(t *testing.T, db *pgtest.DB, a access)) {
	t.Helper()
	db := newOutbox(t, 64)
	for _, a := range accesses(t, db) {
		t.Run(a.name, func(t *testing.T) {
			f(t, db, a)
		})
	}
}

func config(db *pgtest.DB) WriterConfig {
	return WriterConfig{Schema: db.Schema, TablePrefix: db.Prefix}
}

// row is a message as the table has it.
type row struct {
	outbox.Message
	Partition   int
	Seq         int64
	Tx          string
	KeySeq      int64
	AvailableAt *time.Time
}

func rowsOf(t testing.TB, db *pgtest.DB, where string, args ...any) []row {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sqlOf(db, `SELECT id, topic, partition_key, type, payload, content_type, headers, scope, correlation_id,
		causation_id, aggregate_type, aggregate_id, event_id, partition_id, seq, txid::text, key_seq, available_at FROM outbox_messages WHERE `+where+` ORDER BY seq`), args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(c pgx.CollectableRow) (r row, err error) {
		var id [16]byte
		err = c.Scan(&id, &r.Topic, &r.Key, &r.Type, &r.Payload, &r.ContentType, &r.Headers, &r.Scope, &r.CorrelationID,
			&r.CausationID, &r.AggregateType, &r.AggregateID, &r.EventID, &r.Partition, &r.Seq, &r.Tx, &r.KeySeq, &r.AvailableAt)
		r.ID = id
		return r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func ids(ms []outbox.Message) []string {
	texts := make([]string, len(ms))
	for i, m := range ms {
		texts[i] = m.ID.String()
	}
	return texts
}

// awkward are messages with what drivers, JSON and SQL treat specially.
func awkward() []outbox.Message {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	ms := []outbox.Message{
		{Topic: "orders", Type: "OrderPaid"},
		{
			Topic: `t\o'"p`, Key: `a\b`, Type: "日本 \u0085\u00a0", ContentType: "application/json", Scope: "eu", CorrelationID: `\`, CausationID: `''`,
			AggregateType: "ünï", AggregateID: `{"a":1}`, EventID: "<&>\u2028", Payload: every,
			Headers: map[string]string{"a": "", "B-c": "ü <&> \" ' \\ \t \u2028", "traceparent": "00-1-2-01"}, AvailableAt: time.Date(2031, 2, 3, 4, 5, 6, 7001, time.FixedZone("x", 3600)),
		},
		{Topic: "t", Type: "first year", AvailableAt: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), Payload: []byte(`\x41`)},
		{Topic: "t", Type: "before it", AvailableAt: time.Date(1, 1, 1, 0, 0, 0, 1, time.FixedZone("x", 3600)), Payload: []byte{}},
		{Topic: "t", Type: "last year", AvailableAt: time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC), Payload: []byte("NULL")},
		{Topic: strings.Repeat("t", 255), Type: strings.Repeat("y", 500), Key: strings.Repeat("ü", 127), Scope: strings.Repeat("s", 64), Payload: bytes.Repeat([]byte{0xff}, 1<<20)},
	}
	for i := range ms {
		ms[i].ID = outbox.NewID()
	}
	return ms
}

func TestWritersStoreEveryField(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *pgtest.DB, a access) {
		for _, many := range []bool{false, true} {
			ms := awkward()
			var receipts []outbox.Receipt
			for part := range slices.Chunk(ms, map[bool]int{true: len(ms), false: 1}[many]) {
				some, err := a.write(t.Context(), config(db), part)
				if err != nil {
					t.Fatal(err)
				}
				receipts = append(receipts, some...)
			}
			rows := rowsOf(t, db, "id = ANY($1::uuid[])", ids(ms))
			if len(rows) != len(ms) {
				t.Fatalf("%d rows of %d", len(rows), len(ms))
			}
			for i, m := range ms {
				compare(t, rows[i], m, receipts[i])
			}
		}
	})
}

func compare(t *testing.T, got row, m outbox.Message, r outbox.Receipt) {
	t.Helper()
	want := row{Message: m, Partition: r.Partition, Seq: r.Seq, Tx: fmt.Sprint(r.Tx)}
	if want.ContentType == "" {
		want.ContentType = "application/octet-stream"
	}
	if !got.Message.AvailableAt.IsZero() {
		t.Error("unreachable: the row has its own field")
	}
	want.Message.AvailableAt = time.Time{}
	if want.Headers == nil {
		want.Headers = map[string]string{}
	}
	if want.Payload == nil {
		want.Payload = []byte{}
	}
	at := got.AvailableAt
	got.AvailableAt = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%.40q:\n got %.600v\nwant %.600v", m.Type, got, want)
	}
	if r.ID != m.ID || r.Partition != outbox.PartitionOf(m.Key, m.ID, 64) {
		t.Errorf("%.40q: receipt %v", m.Type, r)
	}
	switch {
	case m.AvailableAt.IsZero():
		if at != nil {
			t.Errorf("%.40q: available at %v", m.Type, at)
		}
	case m.AvailableAt.Year() <= 1:
		if at == nil || at.UTC().Year() != 1 {
			t.Errorf("%.40q: available at %v", m.Type, at)
		}
	case at == nil || at.Before(m.AvailableAt) || at.Sub(m.AvailableAt) >= time.Microsecond:
		t.Errorf("%.40q: available at %v, want %v", m.Type, at, m.AvailableAt)
	}
}

func TestWriteAllKeepsTheOrderOfItsArguments(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *pgtest.DB, a access) {
		ms := make([]outbox.Message, 1000)
		for i := range ms { // ids in random order: no index may decide
			ms[i] = outbox.Message{ID: randomID(), Topic: "t", Type: fmt.Sprint(i), Key: fmt.Sprint(i % 7)}
		}
		receipts, err := a.write(t.Context(), config(db), ms)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range receipts {
			if r.ID != ms[i].ID || i > 0 && r.Seq <= receipts[i-1].Seq {
				t.Fatalf("receipt %d is %v after %v", i, r, receipts[max(i-1, 0)])
			}
		}
		for i, got := range rowsOf(t, db, "id = ANY($1::uuid[])", ids(ms)) {
			if got.Type != fmt.Sprint(i) {
				t.Fatalf("row %d by seq is message %s", i, got.Type)
			}
		}
	})
}

func randomID() outbox.ID {
	id := outbox.NewID()
	for i := range 6 {
		id[i] = byte(rand.IntN(256))
	}
	return id
}

func TestWriteAllSplitsWhatIsTooLargeForAStatement(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	w := NewWriter(WriterConfig{Schema: db.Schema, TablePrefix: db.Prefix, Serialize: []outbox.Pattern{">"}})
	ms := make([]outbox.Message, partMessages+1)
	for i := range ms {
		ms[i] = outbox.Message{Topic: "t", Type: "t", Key: fmt.Sprint(i % 3)}
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		receipts, err := w.WriteAll(t.Context(), tx, ms)
		for i := 1; i < len(receipts); i++ {
			if receipts[i].Seq <= receipts[i-1].Seq {
				t.Fatalf("receipt %d is %v after %v", i, receipts[i], receipts[i-1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range rowsOf(t, db, "true") {
		if got.KeySeq != int64(i/3+1) {
			t.Fatalf("row %d has key_seq %d", i, got.KeySeq)
		}
	}

	p := preparation{ms: make([]prepared, 130)}
	for i := range p.ms {
		p.ms[i].Payload = ms[0].Payload
		if i < 129 {
			p.ms[i].Payload = make([]byte, 1<<20)
		}
	}
	var sizes []int
	for part := range p.parts() {
		sizes = append(sizes, len(part))
	}
	if !slices.Equal(sizes, []int{64, 64, 2}) {
		t.Errorf("129 payloads of 1 MiB and an empty one go in parts of %v", sizes)
	}
}

// TestADuplicateIsRefusedByName has the first one in the log, parked, dead, and in the same write.
func TestADuplicateIsRefusedByName(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *pgtest.DB, a access) {
		for _, place := range []string{"log", "parked", "dead", "same write"} {
			first := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t"}
			second := []outbox.Message{{ID: outbox.NewID(), Topic: "t", Type: "t"}, first}
			if place == "same write" {
				second = append(second, first)
			} else {
				writeAndMove(t, db, a, place, first)
			}
			_, err := a.write(t.Context(), config(db), second)
			if !errors.Is(err, outbox.ErrDuplicateMessage) || !strings.Contains(err.Error(), first.ID.String()) {
				t.Errorf("%s: %v, want a duplicate that names %s", place, err, first.ID)
			}
			if n := len(rowsOf(t, db, "id = $1", second[0].ID.String())); n != 0 {
				t.Errorf("%s: the message before it was written", place)
			}
		}
	})
}

func TestIgnoreDuplicatesReturnsTheFirstReceipt(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *pgtest.DB, a access) {
		for _, serialize := range [][]outbox.Pattern{nil, {"t"}} {
			c := config(db)
			c.IgnoreDuplicates, c.Serialize = true, serialize
			key := outbox.NewID().String()
			var ms []outbox.Message
			var want []outbox.Receipt
			for i, place := range []string{"log", "parked", "dead"} {
				m := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "first", Key: key}
				want = append(want, writeAndMove(t, db, a, place, m))
				m.Type = "second"
				ms = append(ms, outbox.Message{ID: outbox.NewID(), Topic: "t", Type: fmt.Sprint(i), Key: key}, m)
			}
			ms = append(ms, ms[0])
			got, err := a.write(t.Context(), c, ms)
			if err != nil {
				t.Fatal(err)
			}
			if got[1] != want[0] || got[3] != want[1] || got[5] != want[2] || got[6] != got[0] {
				t.Errorf("receipts %v\nwant %v for 1, 3, 5, and 6 like 0", got, want)
			}
			var types []string
			var numbers []int64
			for _, r := range rowsOf(t, db, "partition_key = $1", key) {
				types, numbers = append(types, r.Type), append(numbers, r.KeySeq)
			}
			if fmt.Sprint(types) != "[first 0 1 2]" {
				t.Errorf("rows %v", types)
			}
			if want := map[bool]string{false: "[0 0 0 0]", true: "[0 1 2 3]"}[serialize != nil]; fmt.Sprint(numbers) != want {
				t.Errorf("key_seq %v, want %s", numbers, want)
			}
			again, err := a.write(t.Context(), c, ms)
			if err != nil || !slices.Equal(again, got) {
				t.Errorf("again: %v, %v", again, err)
			}
		}
	})
}

// writeAndMove writes the message and takes its row out of the log, as retention does after it was parked or died.
func writeAndMove(t *testing.T, db *pgtest.DB, a access, place string, m outbox.Message) outbox.Receipt {
	t.Helper()
	receipts, err := a.write(t.Context(), config(db), []outbox.Message{m})
	if err != nil {
		t.Fatal(err)
	}
	if place == "log" {
		return receipts[0]
	}
	columns := strings.Replace(copied, "place, ", "", 1)
	extra, values := ", reason", ", 'behind'"
	if place == "dead" {
		extra, values = ", blocks, code, error, attempts, first_failure, last_failure, relay", ", false, 'c', 'e', 1, now(), now(), 'r'"
	}
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_`+place+` (sink, place, `+columns+extra+`) SELECT 's', seq, `+columns+values+` FROM outbox_messages WHERE id = $1`), m.ID.String())
	db.Exec(t, sqlOf(db, `DELETE FROM outbox_messages WHERE id = $1`), m.ID.String())
	return receipts[0]
}

// TestIgnoreDuplicatesWaitsForTheFirst: the first one is written by a transaction that has not ended yet.
func TestIgnoreDuplicatesWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for _, serialize := range [][]outbox.Pattern{nil, {">"}} {
		db := newOutbox(t, 64)
		c := config(db)
		c.IgnoreDuplicates, c.Serialize = true, serialize
		m := outbox.Message{ID: outbox.NewID(), Topic: "t", Type: "t", Key: "k"}
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first, err := NewWriter(c).Write(t.Context(), tx, m)
		if err != nil {
			t.Fatal(err)
		}
		pid, done := make(chan uint32, 1), make(chan outbox.Receipt, 1)
		go func() {
			_ = pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				pid <- tx.Conn().PgConn().PID()
				second, err := NewWriter(c).Write(t.Context(), tx, m)
				if err != nil {
					t.Error(err)
				}
				done <- second
				return err
			})
		}()
		waiting := <-pid
		pgtest.Eventually(t, "the second write waits", func() bool {
			return pgtest.One[bool](t, db.Pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, waiting)
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if second := <-done; second != first {
			t.Errorf("receipt %v, want that of the first, %v", second, first)
		}
		if serialize != nil {
			if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT key_seq FROM outbox_keys`)); n != 1 {
				t.Errorf("the key's number is %d, want 1", n)
			}
		}
	}
}

// TestSerializeNumbersKeysWithoutGaps has writers that each write several keys in an order of their own, and some roll
// back: nobody deadlocks, and every key's numbers have no gaps and go with its sequence numbers.
func TestSerializeNumbersKeysWithoutGaps(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db *pgtest.DB, a access) {
		c := config(db)
		c.Serialize = []outbox.Pattern{"numbered.>"}
		prefix := outbox.NewID().String()
		_, _ = a.write(t.Context(), config(db), []outbox.Message{{ID: outbox.IDFrom("writer", "there"), Topic: "t", Type: "t"}})
		var writers sync.WaitGroup
		for writer := range 4 {
			writers.Add(1)
			go func() {
				defer writers.Done()
				for round := range 5 {
					var ms []outbox.Message
					for _, k := range rand.Perm(5) {
						m := outbox.Message{Topic: "numbered.a", Type: "t", Key: fmt.Sprint(prefix, k)}
						plain := outbox.Message{Topic: "plain", Type: "t", Key: fmt.Sprint(prefix, k)}
						ms = append(ms, m, plain, m, outbox.Message{Topic: "numbered.a", Type: "t"})
					}
					if strings.HasPrefix(a.name, "batch") { // a statement each: the caller goes by keys
						slices.SortStableFunc(ms, func(x, y outbox.Message) int { return strings.Compare(x.Key, y.Key) })
					}
					fails := (writer+round)%5 == 0
					if fails {
						ms = append(ms, outbox.Message{ID: outbox.IDFrom("writer", "there"), Topic: "t", Type: "t"})
					}
					if _, err := a.write(t.Context(), c, ms); (err != nil) != fails || fails && !errors.Is(err, outbox.ErrDuplicateMessage) {
						t.Errorf("writer %d, round %d: %v", writer, round, err)
					}
				}
			}()
		}
		writers.Wait()
		for k := range 5 {
			next := int64(1)
			for _, r := range rowsOf(t, db, "partition_key = $1", fmt.Sprint(prefix, k)) {
				switch {
				case r.Topic == "plain" && r.KeySeq == 0:
				case r.Topic != "plain" && r.KeySeq == next:
					next++
				default:
					t.Fatalf("key %d: a message of %s has number %d, want %d", k, r.Topic, r.KeySeq, next)
				}
			}
			if next != 4*4*2+1 {
				t.Errorf("key %d: the last number is %d, want %d", k, next-1, 4*4*2)
			}
		}
		if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT count(*) FROM outbox_messages WHERE partition_key = '' AND key_seq <> 0`)); n != 0 {
			t.Errorf("%d messages without key are numbered", n)
		}
	})
}
