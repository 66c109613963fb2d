package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/relay"
)

// An idle relay runs at most 20 statements a second, with BEGIN, COMMIT, and what hears of commits.
func TestAnIdleRelayRunsFewStatements(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	var all statements
	config := pool.Config()
	config.ConnConfig.Tracer = &all
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(traced.Close)
	runs(t, traced, relay.Config{Sinks: []relay.Sink{{Name: "idle", Publisher: newNoop(true, -1)}}})
	const seconds, most = 4, 20
	for tries := 0; ; tries++ { // it falls asleep in steps, the last of which takes a second
		before := all.n.Load()
		<-time.After(seconds * time.Second)
		if count := all.n.Load() - before; count <= most*seconds {
			t.Logf("%.1f statements a second", float64(count)/seconds)
			return
		} else if tries == 2 {
			t.Fatalf("%.1f statements a second, want at most %d", float64(count)/seconds, most)
		}
	}
}

// statements counts each statement of a pool.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.n.Add(1) }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
