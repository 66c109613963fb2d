package bench

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
)

var latest = store.Start{Latest: true}

// runs runs a relay until the benchmark ends, and returns when it holds every partition of its sinks.
func runs(b testing.TB, pool *pgxpool.Pool, c relay.Config) {
	b.Helper()
	s, err := postgres.Open(b.Context(), pool, postgres.Config{})
	must(b, err)
	c.Store = s
	r, err := relay.New(c)
	must(b, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		must(b, s.Close())
	})
	names := make([]string, len(c.Sinks))
	for i := range c.Sinks {
		names[i] = c.Sinks[i].Name
	}
	tick := newTick(b)
	for one[int](b, pool, `SELECT count(*) FROM outbox_partitions WHERE sink = ANY ($1) AND relay IS NOT NULL`, names) < 64*len(names) {
		<-tick
	}
}
