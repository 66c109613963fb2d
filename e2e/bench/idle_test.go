package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/relay"
)

// An idle relay runs few statements a second, with BEGIN, COMMIT, and what hears of commits: 20 at most, also with five sinks.
func TestAnIdleRelayRunsFewStatements(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	for _, c := range []struct { //nolint:paralleltest // on the same server, in turn
		sinks int
		most  int64
	}{{1, 12}, {5, 20}} {
		t.Run(fmt.Sprint(c.sinks, " sinks"), func(t *testing.T) {
			var all statements
			config := pool.Config()
			config.ConnConfig.Tracer = &all
			traced, err := pgxpool.NewWithConfig(t.Context(), config)
			must(t, err)
			t.Cleanup(traced.Close)
			var sinks []relay.Sink
			for i := range c.sinks {
				sinks = append(sinks, relay.Sink{Name: fmt.Sprint("idle-", i), Publisher: newNoop(true, -1)})
			}
			runs(t, traced, relay.Config{Sinks: sinks})
			all.wantFew(t, c.most)
		})
	}
}

// wantFew waits until a relay that has begun sleeps, and counts.
func (s *statements) wantFew(t *testing.T, most int64) {
	t.Helper()
	const seconds = 4
	for tries := 0; ; tries++ { // it falls asleep in steps, the last of which takes a second
		before := s.n.Load()
		<-time.After(seconds * time.Second)
		if count := s.n.Load() - before; count <= most*seconds {
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
