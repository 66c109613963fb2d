package bench

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// BenchmarkAlternatives empties an outbox in the ways of docs/decisions/0001: by the log, and by rows that are claimed. One worker,
// a publisher that takes everything at once, durable settings, 500 rows a claim; each once with nothing beside it, and once with a
// transaction that was opened before and ends afterwards.
//
// The claims are as good as they get: no retries, no leases, no cursor of a sink, and the mark is in the statement that claims. A
// worker that dies loses what it has claimed, which a real one must not. Those that know nothing of keys keep no order.
func BenchmarkAlternatives(b *testing.B) {
	n := messages(b)
	for _, held := range []string{"alone", "beside an open transaction"} {
		for _, way := range []string{"log", "claim_update", "claim_delete", "claim_heads"} {
			b.Run(way+"/"+held, func(b *testing.B) {
				var took time.Duration
				wal := 0.0
				published := 0
				for b.Loop() {
					b.StopTimer()
					pool := newDatabase(b)
					count := n
					if way == "claim_heads" {
						count = min(n, 10_000) // it gets slower with what waits
					}
					prepareWay(b, pool, way, count)
					end := hold(b, pool, held != "alone")
					lsn := one[string](b, pool, `SELECT pg_current_wal_insert_lsn()::text`)
					b.StartTimer()
					took += empty(b, pool, way, count)
					b.StopTimer()
					wal += walSince(b, pool, lsn)
					published += count
					end()
					b.StartTimer()
				}
				b.ReportMetric(float64(published)/took.Seconds(), "msg/s")
				b.ReportMetric(wal/float64(published), "WAL-B/msg")
			})
		}
	}
}

// hold leaves a transaction open that has drawn an id, as a report or a forgotten session would.
func hold(b *testing.B, pool *pgxpool.Pool, wanted bool) (end func()) {
	b.Helper()
	if !wanted {
		return func() {}
	}
	tx, err := pool.Begin(b.Context())
	must(b, err)
	_, err = tx.Exec(b.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`)
	must(b, err)
	return func() { must(b, tx.Rollback(b.Context())) }
}

func prepareWay(b *testing.B, pool *pgxpool.Pool, way string, n int) {
	b.Helper()
	if way == "log" {
		fill(b, pool, n)
		return
	}
	payload := make([]byte, payloadBytes)
	_, _ = rand.Read(payload)
	exec(b, pool, query("rows"))
	exec(b, pool, query("rows_fill"), n, keys, payload)
	exec(b, pool, `VACUUM (ANALYZE)`)
	exec(b, pool, `CHECKPOINT`)
}

func empty(b *testing.B, pool *pgxpool.Pool, way string, n int) time.Duration {
	b.Helper()
	if way == "log" {
		return drain(b, pool, newNoop(false, n))
	}
	const page = 500
	began, came := time.Now(), 0
	for {
		rows, err := pool.Query(b.Context(), query(way), page)
		must(b, err)
		before := came
		var seq int64
		var key string
		var payload []byte
		for rows.Next() {
			must(b, rows.Scan(&seq, &key, &payload))
			came++
		}
		must(b, rows.Err())
		if came == before {
			break
		}
	}
	took := time.Since(began)
	if came != n {
		b.Fatalf("%d messages came, want %d", came, n)
	}
	return took
}
