package harness

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func server(t *testing.T, create func(dir string) (*Server, error), variable string) *Server {
	t.Helper()
	needed(t, variable)
	s, err := create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(syscall.SIGKILL) })
	return s
}

// The broker is down for many backoffs and breaker times while 4,000 messages wait: no dead letter, and everything is
// out soon after it returns.
func TestABrokerThatIsDownCostsNoMessageAnAttempt(t *testing.T) {
	t.Parallel()
	broker := server(t, NewNATS, "ONWARD_TEST_NATS_SERVER")
	s := openOn(t, needed(t, "ONWARD_TEST_POSTGRES_URL"), broker.URL, 16, &Workload{Keys: 500, Writers: 4, Messages: 4_000, Payload: 64, Seed: 5})
	s.start(RelayConfig{
		Name: "relay", Lease: 2 * time.Second, Window: 500, RetryFirst: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond,
		Attempts: 3, BreakerFirst: 20 * time.Millisecond, PublishTimeout: 500 * time.Millisecond,
	})
	done := make(chan error, 1)
	go func() { done <- s.work.Run(t.Context()) }()
	s.must(s.collector.WaitFor(t.Context(), 500, 30*time.Second))
	s.fault("broker down", "nats")
	s.must(broker.Stop(syscall.SIGKILL))
	s.must(<-done)
	pause(t.Context(), 6*time.Second) // 120 longest backoffs
	s.must(broker.Start(t.Context()))
	s.fault("broker up", "nats")
	v := s.check(15*time.Second, 30*time.Second)
	var dead, attempts int
	s.must(s.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM "`+s.schema+`".outbox_dead), (SELECT count(*) FROM "`+s.schema+`".outbox_attempts)`).Scan(&dead, &attempts))
	if dead != 0 || attempts != 0 {
		t.Errorf("%d dead letters, %d attempts used up: want none of either (%v)", dead, attempts, v)
	}
}

// The database is stopped as in a crash, again and again, while writers and relays work: nothing is lost, and what comes
// twice comes beside a restart.
func TestADatabaseThatCrashesLosesNothing(t *testing.T) {
	t.Parallel()
	db := server(t, func(dir string) (*Server, error) { return NewPostgres(dir) }, "ONWARD_TEST_POSTGRES_BIN")
	s := openOn(t, db.URL, needed(t, "ONWARD_TEST_NATS_URL"), 16, &Workload{Keys: 200, Writers: 4, Payload: 64, Pause: 2 * time.Millisecond, Seed: 6})
	for _, name := range []string{"one", "two"} {
		s.start(RelayConfig{Name: name, Lease: 1500 * time.Millisecond, Window: 200})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	for range 3 {
		s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+300, 30*time.Second))
		s.fault("database crash", "postgres")
		s.must(db.Stop(Immediate))
		s.must(db.Start(ctx))
		s.fault("database up", "postgres")
	}
	s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+300, 30*time.Second))
	stop()
	s.must(<-done)
	s.check(15*time.Second, 30*time.Second)
}

// A writing transaction stays open, in this database and in another of the same server: no other message waits for it, and
// its own come once it has committed. ONWARD_E2E_HOLD says how long they stay open (60s for the full run).
func TestOpenTransactionsDelayNoOtherMessage(t *testing.T) {
	t.Parallel()
	hold := 3 * time.Second
	if text := os.Getenv("ONWARD_E2E_HOLD"); text != "" {
		var err error
		if hold, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, 16, &Workload{})
	other := s.otherDatabase()
	p := newTimed(s.jetStream())
	s.inProcess(p, nil)
	before := s.latencies(p, 300)
	ctx := t.Context()
	held, err := s.pool.Begin(ctx)
	s.must(err)
	defer func() { _ = held.Rollback(context.Background()) }()
	_, err = held.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.outbox_messages (topic, type, partition_key, payload) VALUES ($1, 'Made', 'key-1', 'late')`, s.schema), s.work.Topic)
	s.must(err)
	elsewhere, err := other.Begin(ctx)
	s.must(err)
	defer func() { _ = elsewhere.Rollback(context.Background()) }()
	_, err = elsewhere.Exec(ctx, `CREATE TABLE held AS SELECT 1`)
	s.must(err)
	var rounds []time.Duration
	for began := time.Now(); time.Since(began) < hold; {
		rounds = append(rounds, s.latencies(p, 300)) // which waits for each of them
	}
	slices.Sort(rounds)
	meanwhile := rounds[len(rounds)/2] // of many rounds, one may meet a busy machine
	if slices.Contains(p.of("key-1"), "late") {
		t.Error("a message of an open transaction was published")
	}
	s.must(held.Commit(ctx))
	p.until(t, "the late message", func() bool { return slices.Contains(p.payloads["key-1"], "late") })
	if meanwhile > 3*before+100*time.Millisecond {
		t.Errorf("the 99th percentile was %v while the transactions were open, before them %v", meanwhile, before)
	}
	t.Logf("%d messages while the transactions were open for %v: 99th percentile %v, before them %v", len(rounds)*300, hold, meanwhile, before)
}

// otherDatabase makes a database beside the scene's, until the test ends.
func (s *scene) otherDatabase() *pgxpool.Pool {
	s.t.Helper()
	name := s.schema + "_other"
	_, err := s.pool.Exec(s.t.Context(), `CREATE DATABASE `+name)
	s.must(err)
	config := s.pool.Config()
	config.ConnConfig.Database = name
	pool, err := pgxpool.NewWithConfig(s.t.Context(), config)
	s.must(err)
	s.t.Cleanup(func() {
		pool.Close()
		if _, err := s.pool.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			s.t.Error(err)
		}
	})
	return pool
}
