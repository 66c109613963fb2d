package harness

import (
	"context"
	"syscall"
	"testing"
	"time"
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

// The broker is down for many backoffs and breaker times while 10,000 messages wait: no dead letter, and everything is
// out soon after it returns.
func TestABrokerThatIsDownCostsNoMessageAnAttempt(t *testing.T) {
	t.Parallel()
	broker := server(t, NewNATS, "ONWARD_TEST_NATS_SERVER")
	s := openOn(t, needed(t, "ONWARD_TEST_POSTGRES_URL"), broker.URL, 16, &Workload{Keys: 500, Writers: 4, Messages: 10_000, Payload: 64, Seed: 5})
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
