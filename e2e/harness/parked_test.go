package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A great many messages wait behind one key that fails: the relay's memory stays small, other keys go on, and when the
// key gets through they are released in chunks, in order. ONWARD_E2E_PARKED says how many (1,000,000 for the full run).
func TestManyMessagesParkedBehindOneKeyAreReleasedInOrder(t *testing.T) {
	t.Parallel()
	n := sizeOf(t, "ONWARD_E2E_PARKED", 6_000)
	s := open(t, 16, &Workload{Keys: 10, Writers: 1, Messages: 100, Payload: 64, Seed: 7})
	s.must(s.insertMany("poison", n))
	flag := filepath.Join(t.TempDir(), "poison")
	s.must(os.WriteFile(flag, nil, 0o600))
	s.start(RelayConfig{Name: "relay", Lease: 5 * time.Second, RetryFirst: 50 * time.Millisecond, RetryMax: 500 * time.Millisecond, Attempts: -1, Poison: flag})
	parked := 0
	for parked < n {
		pause(t.Context(), 200*time.Millisecond)
		s.must(t.Context().Err())
		s.must(s.pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*) FROM %q.outbox_parked`, s.schema)).Scan(&parked))
		s.wantMemoryBelow("relay", 64<<20)
	}
	s.must(s.work.Run(t.Context()))
	s.must(s.collector.WaitFor(t.Context(), 100, 20*time.Second)) // the other keys do not wait
	if got := s.collector.Distinct(); got != 100 {
		t.Fatalf("%d messages arrived while the key fails, want the 100 others", got)
	}
	s.must(os.Remove(flag))
	started := time.Now()
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				s.wantMemoryBelow("relay", 64<<20)
			}
		}
	}()
	s.check(0, 60*time.Second)
	close(stop)
	<-watched
	t.Logf("%d parked messages released in %v", n, time.Since(started).Round(time.Millisecond))
}

// insertMany writes n messages of a key, and the ledger, in one transaction.
func (s *scene) insertMany(key string, n int) error {
	ctx := s.t.Context()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.ledger (id, key, n) SELECT gen_random_uuid(), $1, i FROM generate_series(1, $2::int) i`, s.schema), key, n)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.outbox_messages (id, topic, type, partition_key, payload)
		SELECT id, $2, 'Made', key, convert_to('message ' || n, 'UTF8') FROM %q.ledger WHERE key = $1 ORDER BY n`, s.schema, s.schema), key, s.work.Topic)
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (s *scene) wantMemoryBelow(relay string, limit int64) {
	s.t.Helper()
	limit *= raceFactor
	memory, err := s.relays[relay].Memory()
	if err == nil && memory > limit {
		s.t.Errorf("the relay uses %d MiB, want less than %d MiB", memory>>20, limit>>20)
	}
}

// A transaction of many rows that commits late, while others write: everything arrives, in order, also when the relay is
// killed in the middle of the late pass. ONWARD_E2E_LATE says how many rows (300,000 for the full run).
func TestABulkTransactionThatCommitsLateIsPublishedWhole(t *testing.T) {
	t.Parallel()
	n := sizeOf(t, "ONWARD_E2E_LATE", 10_000)
	s := open(t, 16, &Workload{Keys: 100, Writers: 4, Messages: 4000, Payload: 64, Seed: 8})
	ctx := t.Context()
	tx, err := s.pool.Begin(ctx)
	s.must(err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.ledger (id, key, n) SELECT gen_random_uuid(), 'bulk-' || i %% 50, 1 + i / 50 FROM generate_series(0, $1::int - 1) i`, s.schema), n)
	s.must(err)
	_, err = tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %q.outbox_messages (id, topic, type, partition_key, payload)
		SELECT id, $1, 'Made', key, '\x00' FROM %q.ledger WHERE key LIKE 'bulk-%%' ORDER BY n`, s.schema, s.schema), s.work.Topic)
	s.must(err)
	lease := time.Second
	for _, name := range []string{"one", "two"} {
		s.start(RelayConfig{Name: name, Lease: lease, Window: 500})
	}
	s.must(s.work.Run(ctx)) // others write and are published, while the bulk is open
	s.must(s.collector.WaitFor(ctx, 4000, 20*time.Second))
	s.must(tx.Commit(ctx))
	s.must(s.collector.WaitFor(ctx, 4000+n/4, 20*time.Second))
	s.signal("one", 9)
	_ = s.relays["one"].Wait(5 * time.Second)
	s.start(s.configs["one"])
	if v := s.checkTakeOvers(30*time.Second, 30*time.Second); v.Duplicates > 500 { // its late pass comes again as a whole, in its own time
		t.Errorf("%d duplicates: more than the window of the relay that was killed", v.Duplicates)
	}
}
