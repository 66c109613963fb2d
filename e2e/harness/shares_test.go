package harness

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// A relay that is told to stop gives its partitions to the others: none stands free for more than two heartbeats, and the
// first message of its keys is out within one heartbeat of its end.
func TestALeavingRelaysPartitionsAreTakenWithinTwoHeartbeats(t *testing.T) {
	t.Parallel()
	const partitions = 16
	s := open(t, partitions, &Workload{Keys: 200, Writers: 2, Payload: 64, Pause: 2 * time.Millisecond, Seed: 9})
	heartbeat := time.Second // a fifth of the lease
	for i := range 3 {
		s.start(RelayConfig{Name: fmt.Sprintf("relay-%d", i), Lease: 5 * heartbeat, Window: 100})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	s.shared(partitions, "relay-0", "relay-1", "relay-2")
	for _, leaver := range []string{"relay-0", "relay-1"} {
		held := s.partitionsOf(leaver)
		s.must(s.relays[leaver].Signal(syscall.SIGTERM))
		longest := s.longestFree(leaver, partitions)
		s.must(s.relays[leaver].Wait(20 * time.Second))
		if longest > 2*heartbeat {
			t.Errorf("a partition stood free for %v after %s left, want at most %v", longest, leaver, 2*heartbeat)
		}
		ended := time.Now()
		s.must(s.collector.WaitForOne(ctx, 20*time.Second, func(a Arrival) bool {
			return a.At.After(ended) && slices.Contains(held, int32(outbox.PartitionOf(a.Key, outbox.ID{}, partitions))) //nolint:gosec // below 16,384
		}))
		took := time.Since(ended)
		if took > heartbeat {
			t.Errorf("the first message of its keys came %v after %s had ended, want at most %v", took, leaver, heartbeat)
		}
		t.Logf("%s held %d partitions; the longest that one stood free: %v; the first message of its keys: %v", leaver, len(held), longest, took)
	}
	stop()
	s.must(<-done)
	if v := s.check(0, 20*time.Second); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
}

// A publish that takes three lease times belongs to a relay that lives: nobody takes over, and nothing is sent twice.
func TestAPublishOfThreeLeasesIsNeitherTakenOverNorRepeated(t *testing.T) {
	t.Parallel()
	s := open(t, 16, &Workload{Keys: 40, Writers: 4, Messages: 60, Payload: 64, Seed: 10})
	lease := 500 * time.Millisecond
	for i := range 2 {
		s.start(RelayConfig{Name: fmt.Sprintf("relay-%d", i), Lease: lease, Slow: 3 * lease, PublishTimeout: 20 * lease})
	}
	s.shared(16, "relay-0", "relay-1")
	before := s.epochs()
	s.must(s.work.Run(t.Context()))
	if v := s.check(0, 30*time.Second); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
	if after := s.epochs(); after != before {
		t.Errorf("partitions changed hands: the sum of their epochs was %d and is %d", before, after)
	}
}

// shared waits until these relays hold all partitions, each within one of an equal share.
func (s *scene) shared(partitions int, names ...string) {
	s.t.Helper()
	s.registered(names...)
	for deadline := time.Now().Add(30 * time.Second); ; pause(s.t.Context(), 10*time.Millisecond) {
		even := true
		for _, name := range names {
			n := len(s.partitionsOf(name))
			even = even && n >= partitions/len(names) && n <= partitions/len(names)+1
		}
		if even && s.count(`SELECT count(*) FROM %q.outbox_partitions WHERE relay IS NULL`) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("the relays do not share the partitions evenly")
		}
	}
}

// count answers a question about the outbox's schema.
func (s *scene) count(sql string, args ...any) (n int) {
	s.t.Helper()
	s.must(s.t.Context().Err())
	s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(sql, s.schema), args...).Scan(&n))
	return n
}

func (s *scene) epochs() int {
	return s.count(`SELECT sum(epoch)::int FROM %q.outbox_partitions`)
}

func (s *scene) partitionsOf(relay string) (held []int32) {
	s.t.Helper()
	s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(`SELECT coalesce(array_agg(p.partition_id), '{}') FROM %q.outbox_partitions p JOIN %q.outbox_relays r ON r.id = p.relay
		WHERE r.name = $1`, s.schema, s.schema), relay).Scan(&held))
	return held
}

// longestFree watches until a relay is gone and every partition is held, and says how long one was seen free at most.
func (s *scene) longestFree(leaver string, partitions int) (longest time.Duration) {
	s.t.Helper()
	since := map[int32]time.Time{}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); pause(s.t.Context(), 5*time.Millisecond) {
		var free []int32
		s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(`SELECT coalesce(array_agg(partition_id), '{}') FROM %q.outbox_partitions WHERE relay IS NULL`, s.schema)).Scan(&free))
		now, still := time.Now(), map[int32]time.Time{}
		for _, p := range free {
			still[p] = now
			if t, ok := since[p]; ok {
				still[p] = t
				longest = max(longest, now.Sub(t))
			}
		}
		since = still
		if len(free) == 0 && s.count(`SELECT count(*) FROM %q.outbox_relays WHERE name = $1`, leaver) == 0 {
			return longest
		}
	}
	s.t.Fatalf("after %s left, not all of the %d partitions found another relay", leaver, partitions)
	return 0
}

// Relays that join one after the other under load, while publishes fail, send nothing twice.
func TestJoiningRelaysMakeNoDuplicate(t *testing.T) {
	t.Parallel()
	s := open(t, 64, &Workload{Keys: 1000, Writers: 8, Messages: messages(t, 6000), Payload: 64, Rollbacks: 0.02, Hold: 2 * time.Millisecond, Seed: 11})
	done := make(chan error, 1)
	go func() { done <- s.work.Run(t.Context()) }()
	for i := range 5 {
		s.start(RelayConfig{
			Name: fmt.Sprintf("relay-%d", i), Lease: 5 * time.Second, Window: 200, RetryFirst: 50 * time.Millisecond, RetryMax: time.Second,
			Attempts: -1, BreakerFirst: 50 * time.Millisecond, Fail: 0.05, Seed: uint64(i), //nolint:gosec // small
		})
	}
	s.must(<-done)
	if v := s.check(0, 30*time.Second); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
}
