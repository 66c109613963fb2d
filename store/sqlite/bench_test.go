package sqlite

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
)

// noop takes every message at once.
type noop struct {
	pipeline    bool
	want, taken atomic.Int64
	all         chan struct{} // closed when want were taken
}

func newNoop(pipeline bool, want int) *noop {
	p := &noop{pipeline: pipeline, all: make(chan struct{})}
	p.want.Store(int64(want))
	return p
}

func (p *noop) Capabilities() broker.Capabilities { return broker.Capabilities{Pipeline: p.pipeline} }
func (*noop) Check(context.Context) error         { return nil }
func (*noop) Close(context.Context) error         { return nil }

func (p *noop) Publish(_ context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	n := int64(len(batch))
	for i := range batch {
		done(i, broker.Result{Outcome: broker.Accepted})
	}
	if now, want := p.taken.Add(n), p.want.Load(); now >= want && now-n < want {
		close(p.all)
	}
}

// BenchmarkDrain is one relay that empties an outbox of 100,000 messages of 512 bytes under 1,000 keys, in a file with
// durable settings; the publisher takes everything at once. Each iteration is a new sink. bare is a keyset read of the same
// columns in pages of 2,048, scanned and dropped.
func BenchmarkDrain(b *testing.B) {
	const n = 100_000
	f := newOutbox(b)
	f.fill(b, n)
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			f.bare(b, n)
		}
		b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	for name, pipeline := range map[string]bool{"key-by-key": false, "pipeline": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f.drain(b, newNoop(pipeline, n))
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// fill writes n messages by plain SQL.
func (f file) fill(t testing.TB, n int) {
	t.Helper()
	f.exec(t, `WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?)
		INSERT INTO outbox_messages (topic, type, partition_key, payload) SELECT 'orders', 'OrderPaid', 'key-' || n % 1000, randomblob(512) FROM i`, n)
}

func (f file) bare(b *testing.B, want int) {
	b.Helper()
	text, n, at := names{testPrefix}.statements("session")["page"], 0, int64(0)
	page := func() (rows int) {
		found, err := f.db.QueryContext(b.Context(), text, "none", at, 2048, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = found.Close() }()
		var r recordRow
		var blocked bool
		for ; found.Next(); rows++ {
			if err := found.Scan(append(r.fields(), &blocked)...); err != nil {
				b.Fatal(err)
			}
			at = r.Seq
		}
		if err := found.Err(); err != nil {
			b.Fatal(err)
		}
		return rows
	}
	for rows := page(); rows > 0; rows = page() {
		n += rows
	}
	if n != want {
		b.Fatalf("read %d", n)
	}
}

// drain runs a relay on a new sink until the publisher has everything, and lets it settle and leave.
func (f file) drain(t testing.TB, p *noop) {
	t.Helper()
	sink := "drain-" + outbox.NewID().String()
	s := f.store(t)
	r, err := relay.New(relay.Config{Store: s, Sinks: []relay.Sink{{Name: sink, Publisher: p}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-p.all:
		case <-ctx.Done():
		}
		cancel()
	}()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if taken, settled := p.taken.Load(), one[int64](t, f, `SELECT published FROM outbox_partitions WHERE sink = ?`, sink); taken != settled || taken != p.want.Load() {
		t.Fatalf("%d messages were published and %d settled, want %d", taken, settled, p.want.Load())
	}
}

// BenchmarkWrite is what a message costs the service that writes it: one connection, one transaction after the other, each
// with a row of the service's own and, but for plain, messages of 512 bytes beside it.
func BenchmarkWrite(b *testing.B) {
	f := newOutbox(b)
	f.exec(b, `CREATE TABLE plain_rows (id TEXT PRIMARY KEY, topic TEXT NOT NULL, partition_key TEXT NOT NULL, payload BLOB NOT NULL)`)
	for _, synchronous := range []string{"full", "normal"} {
		for _, n := range []int{0, 1, 100} {
			b.Run(synchronous+"/"+strconv.Itoa(n)+"-messages", func(b *testing.B) { f.writes(b, synchronous, n) })
		}
	}
}

func (f file) writes(b *testing.B, synchronous string, perTransaction int) {
	db, err := OpenDB(b.Context(), f.path, FileConfig{Synchronous: synchronous})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	out := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	payload := make([]byte, 512)
	_, _ = rand.Read(payload)
	ms := make([]outbox.Message, perTransaction)
	transactions := 0
	for b.Loop() {
		for i := range ms {
			ms[i] = outbox.Message{Topic: "orders", Type: "Measured", Key: "key-" + strconv.Itoa((transactions+i)%1000), Payload: payload}
		}
		tx, err := db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.ExecContext(b.Context(), `INSERT INTO plain_rows VALUES (?, 'orders', 'key', ?)`, outbox.NewID().String(), payload); err != nil {
			b.Fatal(err)
		}
		if _, err := out.WriteAll(b.Context(), tx, ms); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
		transactions++
	}
	if perTransaction > 0 {
		b.ReportMetric(float64(transactions*perTransaction)/b.Elapsed().Seconds(), "msg/s")
	}
}
