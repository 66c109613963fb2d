package bench

import (
	"crypto/rand"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres"
)

// BenchmarkWrite is what a message costs the service that writes it: one connection, one transaction after the other, each
// with a row of the service's own and, but for plain, messages of 512 bytes beside it. Most of the time is the commit's, until
// the disk has it.
func BenchmarkWrite(b *testing.B) {
	pool := newDatabase(b)
	exec(b, pool, `CREATE TABLE plain_rows (id uuid PRIMARY KEY, topic text NOT NULL, partition_key text NOT NULL, payload bytea NOT NULL)`)
	b.Run("plain", func(b *testing.B) { writes(b, pool, 0) })
	b.Run("1-message", func(b *testing.B) { writes(b, pool, 1) })
	b.Run("100-messages", func(b *testing.B) { writes(b, pool, 100) })
}

func writes(b *testing.B, pool *pgxpool.Pool, perTransaction int) {
	b.ReportAllocs()
	out := postgres.NewWriter(postgres.WriterConfig{})
	payload := make([]byte, payloadBytes)
	_, _ = rand.Read(payload)
	ms := make([]outbox.Message, perTransaction)
	lsn, transactions := one[string](b, pool, `SELECT pg_current_wal_insert_lsn()::text`), 0
	conn, err := pool.Acquire(b.Context())
	must(b, err)
	defer conn.Release()
	for b.Loop() {
		for i := range ms {
			ms[i] = outbox.Message{Topic: "orders", Type: "Measured", Key: "key-" + strconv.Itoa((transactions+i)%keys), Payload: payload}
		}
		must(b, pgx.BeginFunc(b.Context(), conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(b.Context(), query("bare_write"), outbox.NewID(), "orders", "key", payload); err != nil {
				return err
			}
			_, err := out.WriteAll(b.Context(), tx, ms)
			return err
		}))
		transactions++
	}
	b.ReportMetric(walSince(b, pool, lsn)/float64(transactions), "WAL-B/op")
	if perTransaction > 0 {
		b.ReportMetric(float64(transactions*perTransaction)/b.Elapsed().Seconds(), "msg/s")
	}
}
