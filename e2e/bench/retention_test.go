package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// BenchmarkRetention is one relay that empties an outbox and removes what it has published, at once: retention.published 0, as
// expensive as it gets. The outbox is filled again for each iteration; in between the same outbox is drained with the
// default, which removes nothing meanwhile.
//
//	msg/s      published, until the last message is settled
//	ratio      of the speed without removing
//	gone/s     removed, until the table is empty
//	WAL-B/msg  the server's write-ahead log of all of it, for each message
func BenchmarkRetention(b *testing.B) {
	pool, n := newDatabase(b), messages(b)
	var took, without, gone time.Duration
	var wal float64
	for b.Loop() {
		b.StopTimer()
		fill(b, pool, n)
		without += drain(b, pool, newNoop(false, n))
		exec(b, pool, query("forget_sinks"))
		exec(b, pool, `CHECKPOINT`)
		lsn := one[string](b, pool, `SELECT pg_current_wal_insert_lsn()::text`)
		b.StartTimer()
		published, empty := drainAndRemove(b, pool, newNoop(false, n))
		b.StopTimer()
		took, gone = took+published, gone+empty
		wal += walSince(b, pool, lsn)
		exec(b, pool, query("forget_sinks"))
		exec(b, pool, `VACUUM outbox_messages`)
		b.StartTimer()
	}
	total := float64(n * b.N)
	b.ReportMetric(total/took.Seconds(), "msg/s")
	b.ReportMetric(without.Seconds()/took.Seconds(), "ratio")
	b.ReportMetric(total/gone.Seconds(), "gone/s")
	b.ReportMetric(wal/total, "WAL-B/msg")
}

// drainAndRemove runs a relay until the table is empty, and says when everything was published, and when it was gone.
func drainAndRemove(b testing.TB, pool *pgxpool.Pool, p *noop) (published, gone time.Duration) {
	b.Helper()
	began := time.Now()
	s, err := postgres.Open(b.Context(), pool, postgres.Config{})
	must(b, err)
	r, err := relay.New(relay.Config{
		Store: s, Sinks: []relay.Sink{{Name: "drain", Publisher: p}}, Retention: relay.Retention{Published: relay.AtOnce},
	})
	must(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-p.all:
	case err := <-done:
		b.Fatalf("the relay ended: %v", err)
	}
	published = time.Since(began)
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for one[bool](b, pool, `SELECT EXISTS (SELECT FROM outbox_messages)`) {
		select {
		case <-every.C:
		case <-ctx.Done():
			b.Fatal("the table was not emptied")
		}
	}
	gone = time.Since(began)
	cancel()
	must(b, <-done)
	must(b, s.Close())
	return published, gone
}
