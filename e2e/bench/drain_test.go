package bench

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// BenchmarkDrain is one relay that empties an outbox: messages of 512 bytes under 1,000 keys, a publisher that takes
// everything at once, a server with durable settings. Each iteration is a new sink, which begins at the first message.
//
//	msg/s      from the start of the relay to its end: registering, reading, settling and leaving included
//	ratio      its speed as a part of the bare read's: the faster one of the bare reads before and after it
//	WAL-B/msg  the server's write-ahead log from the start of the relay to its end, for each message
//
// The publisher of pipeline keeps order while many messages of a key are on their way; the other one, as JetStream's, is
// given one message of a key at a time.
func BenchmarkDrain(b *testing.B) {
	pool, n := newDatabase(b), messages(b)
	fill(b, pool, n)
	bareRead(b, pool, n) // what was not in memory is now, as far as it fits
	b.Run("pipeline", func(b *testing.B) { drains(b, pool, n, true) })
	b.Run("key-by-key", func(b *testing.B) { drains(b, pool, n, false) })
}

func drains(b *testing.B, pool *pgxpool.Pool, n int, pipeline bool) {
	b.ReportAllocs()
	var took, bare time.Duration
	var wal float64
	round := 0
	for b.Loop() {
		b.StopTimer()
		before := bareRead(b, pool, n)
		lsn := one[string](b, pool, `SELECT pg_current_wal_insert_lsn()::text`)
		b.StartTimer()
		took += drain(b, pool, newNoop(pipeline, n))
		b.StopTimer()
		wal += walSince(b, pool, lsn)
		bare += min(before, bareRead(b, pool, n))
		round++
		b.StartTimer()
	}
	total := float64(n * round)
	b.ReportMetric(total/took.Seconds(), "msg/s")
	b.ReportMetric(bare.Seconds()/took.Seconds(), "ratio")
	b.ReportMetric(wal/total, "WAL-B/msg")
}

// drain runs a relay on a new sink until the publisher has everything, lets it settle and leave, and says how long all of it took.
func drain(b testing.TB, pool *pgxpool.Pool, p *noop) time.Duration {
	b.Helper()
	sink := "drain-" + outbox.NewID().String()
	began := time.Now()
	s, err := postgres.Open(b.Context(), pool, postgres.Config{})
	must(b, err)
	r, err := relay.New(relay.Config{Store: s, Sinks: []relay.Sink{{Name: sink, Publisher: p}}})
	must(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-p.all:
		case <-ctx.Done():
		}
		cancel()
	}()
	must(b, r.Run(ctx))
	must(b, s.Close())
	took := time.Since(began)
	if got := p.taken.Load(); got != p.want {
		b.Fatalf("the relay published %d messages, want %d", got, p.want)
	}
	if got := one[int64](b, pool, `SELECT published FROM outbox_sinks WHERE name = $1`, sink); got != p.want {
		b.Fatalf("the relay settled %d messages, want %d", got, p.want)
	}
	return took
}

// The write-ahead log of a relay is a cursor row for each settle: a few bytes a message, and less than 10 also for a small
// backlog, in which the first and last settles count. It reads by the page and settles by the window.
func TestARelayWritesLittleForEachMessage(t *testing.T) {
	t.Parallel()
	const n, page, window = 50_000, 2048, 1000 // as a relay has them by default
	pool := newDatabase(t)
	fill(t, pool, n)
	var asked counter
	config := pool.Config()
	config.ConnConfig.Tracer = &asked
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(traced.Close)
	lsn := one[string](t, pool, `SELECT pg_current_wal_insert_lsn()::text`)
	drain(t, traced, newNoop(false, n))
	if got := walSince(t, pool, lsn) / n; got > 10 {
		t.Errorf("the relay wrote %.1f bytes of log for each message, want at most 10", got)
	}
	if got := asked.reads.Load(); got < n/page || got > n/page+20 {
		t.Errorf("%d messages were read by %d statements, want about one for %d", n, got, page)
	}
	if got := asked.settles.Load(); got < n/window || got > 3*n/window+20 {
		t.Errorf("%d messages were settled by %d statements, want about one for %d", n, got, window)
	}
}

// counter counts the statements of a pool that read messages, and those that settle.
type counter struct{ reads, settles atomic.Int64 }

func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (*counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *counter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	switch {
	case strings.Contains(d.SQL, "DELETE FROM \"public\".outbox_cursors"):
		c.settles.Add(1)
	case strings.Contains(d.SQL, "\"public\".outbox_messages"):
		c.reads.Add(1)
	}
}

func (*counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
