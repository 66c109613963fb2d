package bench

import (
	"context"
	"crypto/rand"
	"embed"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres"
)

//go:embed queries/*.sql
var queries embed.FS

func query(name string) string {
	text, err := queries.ReadFile(filepath.ToSlash(filepath.Join("queries", name+".sql")))
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The load of the figures in docs/performance.md.
const (
	keys         = 1000
	payloadBytes = 512
)

// messages is how many messages wait; ONWARD_BENCH_MESSAGES says how many. The published figures are of 1,000,000.
func messages(b *testing.B) int {
	b.Helper()
	text := os.Getenv("ONWARD_BENCH_MESSAGES")
	if text == "" {
		return 50_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("ONWARD_BENCH_MESSAGES is %q: want a number of messages", text)
	}
	return n
}

// newDatabase starts a PostgreSQL of the benchmark's own, because the write-ahead log of a shared one is everybody's, with
// durable settings and an empty outbox.
func newDatabase(b testing.TB) *pgxpool.Pool {
	b.Helper()
	if os.Getenv("ONWARD_TEST_POSTGRES_BIN") == "" {
		b.Skip(`ONWARD_TEST_POSTGRES_BIN is not set: dev/services up postgres && eval "$(dev/services env)"`)
	}
	server, err := harness.NewPostgres(b.TempDir(), "fsync=on", "synchronous_commit=on", "full_page_writes=on",
		"shared_buffers=256MB", "max_wal_size=4GB")
	must(b, err)
	b.Cleanup(func() {
		if err := server.Stop(syscall.SIGINT); err != nil {
			b.Error(err)
		}
	})
	must(b, server.Start(b.Context()))
	pool, err := pgxpool.New(b.Context(), server.URL)
	must(b, err)
	b.Cleanup(pool.Close)
	must(b, postgres.Migrate(b.Context(), pool, postgres.MigrateConfig{}))
	return pool
}

// fill writes n messages of random bytes, in transactions of 10,000, and leaves the table as autovacuum would.
func fill(b testing.TB, pool *pgxpool.Pool, n int) {
	b.Helper()
	payload := make([]byte, payloadBytes)
	_, _ = rand.Read(payload)
	for from := 1; from <= n; from += 10_000 {
		exec(b, pool, query("fill"), "orders", from, min(from+9_999, n), keys, payload)
	}
	exec(b, pool, `VACUUM (ANALYZE)`)
	exec(b, pool, `CHECKPOINT`)
}

func exec(b testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	b.Helper()
	if _, err := pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%.100s: %v", sql, err)
	}
}

func one[T any](b testing.TB, pool *pgxpool.Pool, sql string, args ...any) (value T) {
	b.Helper()
	if err := pool.QueryRow(b.Context(), sql, args...).Scan(&value); err != nil {
		b.Fatalf("%.100s: %v", sql, err)
	}
	return value
}

func must(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// walSince is how much write-ahead log the server has made since lsn.
func walSince(b testing.TB, pool *pgxpool.Pool, lsn string) float64 {
	b.Helper()
	return one[float64](b, pool, `SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::float8`, lsn)
}

// bareRead reads the whole table over one connection into Go values, drops them, and says how long that took.
func bareRead(b *testing.B, pool *pgxpool.Pool, want int) time.Duration {
	b.Helper()
	began, read := time.Now(), 0
	must(b, pool.AcquireFunc(b.Context(), func(c *pgxpool.Conn) error {
		partition, seq := -1, int64(0)
		for {
			rows, err := c.Query(b.Context(), query("bare"), partition, seq)
			if err != nil {
				return err
			}
			before := read
			for rows.Next() {
				var r row
				if err := rows.Scan(r.columns()...); err != nil {
					return err
				}
				partition, seq = r.Partition, r.Seq
				read++
			}
			if err := rows.Err(); err != nil {
				return err
			}
			if read == before {
				return nil
			}
		}
	}))
	if read != want {
		b.Fatalf("the bare read found %d messages, want %d", read, want)
	}
	return time.Since(began)
}

// row is what the bare read makes of a message.
type row struct {
	outbox.Record
	ID          [16]byte
	Headers     []byte
	AvailableAt *time.Time
}

// columns are in the order of bare.sql.
func (r *row) columns() []any {
	return []any{
		&r.Partition, &r.Seq, &r.ID, &r.Topic, &r.Key, &r.Type, &r.Payload, &r.ContentType, &r.Headers, &r.Scope, &r.CorrelationID,
		&r.CausationID, &r.AggregateType, &r.AggregateID, &r.EventID, &r.KeySeq, &r.CreatedAt, &r.AvailableAt,
	}
}

// noop takes every message at once.
type noop struct {
	pipeline bool
	want     int64
	taken    atomic.Int64
	all      chan struct{} // closed when want were taken
}

var _ broker.Publisher = (*noop)(nil)

func newNoop(pipeline bool, want int) *noop {
	return &noop{pipeline: pipeline, want: int64(want), all: make(chan struct{})}
}

func (p *noop) Capabilities() broker.Capabilities { return broker.Capabilities{Pipeline: p.pipeline} }

func (*noop) Check(context.Context) error { return nil }

func (p *noop) Publish(_ context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	n := int64(len(batch))
	for i := range batch {
		done(i, broker.Result{Outcome: broker.Accepted})
	}
	if now := p.taken.Add(n); now >= p.want && now-n < p.want {
		close(p.all)
	}
}

func (*noop) Close(context.Context) error { return nil }
