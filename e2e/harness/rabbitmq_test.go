package harness

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store/postgres"
)

// openToRabbitMQ makes a scene whose relays publish to an exchange.
func openToRabbitMQ(t *testing.T, partitions int, w *Workload) (s *scene, to RelayConfig) {
	t.Helper()
	to.RabbitMQ = needed(t, "ONWARD_TEST_RABBITMQ_URL")
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := hex.EncodeToString(b[:])
	s = &scene{t: t, url: needed(t, "ONWARD_TEST_POSTGRES_URL"), schema: "e2e_" + name, parts: partitions, relays: map[string]*Process{}, configs: map[string]RelayConfig{}}
	to.Exchange = s.schema
	config, err := pgxpool.ParseConfig(s.url)
	s.must(err)
	config.MaxConns = 24
	s.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	s.must(err)
	_, err = s.pool.Exec(t.Context(), fmt.Sprintf("CREATE SCHEMA %q", s.schema))
	s.must(err)
	t.Cleanup(s.close)
	s.must(postgres.Migrate(t.Context(), s.pool, postgres.MigrateConfig{Schema: s.schema, Partitions: partitions}))
	s.collector, err = CollectQueue(to.RabbitMQ, to.Exchange)
	s.must(err)
	w.Pool, w.Schema, w.Prefix, w.Topic = s.pool, s.schema, "outbox_", "e2e."+name
	s.work = w
	s.must(w.CreateLedger(t.Context()))
	return s, to
}

// Freyr's system: a database, RabbitMQ, messages of an aggregate in the order of their transactions, and five relays at once, of
// which one is killed with -9 every two seconds. A consumer of the queue sees each key in order, and nothing is lost.
func TestFiveRelaysToRabbitMQKeepEachKeyInOrder(t *testing.T) {
	t.Parallel()
	s, to := openToRabbitMQ(t, 64, &Workload{
		Keys: 500, Writers: 8, Messages: messages(t, 5_000), Payload: 64, Rollbacks: 0.02, Hold: 2 * time.Millisecond, Seed: 11,
	})
	lease := 1500 * time.Millisecond
	for i := range 5 {
		c := to
		c.Name, c.Lease, c.Window, c.Seed = fmt.Sprintf("relay-%d", i), lease, 200, uint64(i) //nolint:gosec // small
		c.RetryFirst, c.RetryMax, c.Attempts, c.BreakerFirst, c.Fail = 50*time.Millisecond, time.Second, -1, 50*time.Millisecond, 0.02
		s.start(c)
	}
	done := make(chan error, 1)
	go func() { done <- s.work.Run(t.Context()) }()
	kill := time.NewTicker(2 * time.Second)
	defer kill.Stop()
	kills := 0
	for writing := true; writing || kills < 2; {
		select {
		case err := <-done:
			s.must(err)
			writing, done = false, nil
		case <-kill.C:
			name := fmt.Sprintf("relay-%d", kills%5)
			kills++
			s.signal(name, syscall.SIGKILL)
			_ = s.relays[name].Wait(5 * time.Second)
			s.start(s.configs[name])
		}
	}
	// The consumer dates what it reads, so a copy may look later than it is.
	v := s.checkTakeOvers(lease+10*time.Second, 30*time.Second)
	t.Logf("%d kills, %d messages in order of their keys", kills, v.Arrived)
}
