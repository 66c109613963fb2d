package harness

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// messages is how many messages the large runs write: ONWARD_E2E_MESSAGES, or a number that fits CI.
func messages(t *testing.T, inCI int) int {
	t.Helper()
	return sizeOf(t, "ONWARD_E2E_MESSAGES", inCI)
}

// sizeOf is how large a test runs: so that it fits CI, or as the environment says.
func sizeOf(t *testing.T, variable string, inCI int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return inCI
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q: want a number", variable, text)
	}
	return n
}

// Five relays, 1,000 keys, 5 % of the publishes fail, one relay is killed with -9 every two seconds: nothing is lost, the
// order of first copies is kept, and every duplicate lies beside a kill.
func TestFiveRelaysUnderKillsLoseNothing(t *testing.T) {
	t.Parallel()
	s := open(t, 64, &Workload{
		Keys: 1000, Writers: 8, Messages: messages(t, 25_000), Payload: 64, Rollbacks: 0.02, Hold: 2 * time.Millisecond, Seed: 1,
	})
	lease := 1500 * time.Millisecond
	for i := range 5 {
		s.start(RelayConfig{
			Name: fmt.Sprintf("relay-%d", i), Lease: lease, Window: 200, RetryFirst: 50 * time.Millisecond, RetryMax: time.Second,
			Attempts: -1, BreakerFirst: 50 * time.Millisecond, Fail: 0.05, Seed: uint64(i), //nolint:gosec // small
		})
	}
	done := make(chan error, 1)
	go func() { done <- s.work.Run(t.Context()) }()
	kill := time.NewTicker(2 * time.Second)
	defer kill.Stop()
	kills := 0
	for writing := true; writing || kills < 3; {
		select {
		case err := <-done:
			s.must(err)
			writing = false
			done = nil
		case <-kill.C:
			name := fmt.Sprintf("relay-%d", kills%5)
			kills++
			s.signal(name, syscall.SIGKILL)
			_ = s.relays[name].Wait(5 * time.Second)
			s.start(s.configs[name])
		}
	}
	v := s.checkTakeOvers(lease+4*time.Second, 30*time.Second)
	t.Logf("%d kills", kills)
	if v.Duplicates == 0 {
		t.Log("no kill hit a window in flight")
	}
}

// A relay that is told to stop finishes what is in flight: restarting it under load makes no duplicate.
func TestGracefulRestartsUnderLoadMakeNoDuplicate(t *testing.T) {
	t.Parallel()
	// More than a busy machine can publish would pile up, and a stop takes as long as what lies before the messages in flight.
	s := open(t, 16, &Workload{Keys: 200, Writers: 4, Payload: 64, Pause: 2 * raceFactor * time.Millisecond, Hold: time.Millisecond, Seed: 2})
	for i := range 2 {
		s.start(RelayConfig{Name: fmt.Sprintf("relay-%d", i), Lease: 3 * time.Second, Window: 100})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	s.registered("relay-0", "relay-1")
	for i := range sizeOf(t, "ONWARD_E2E_RESTARTS", 16) {
		name := fmt.Sprintf("relay-%d", i%2)
		before := s.collector.Distinct()
		s.must(s.relays[name].Signal(syscall.SIGTERM))
		if err := s.relays[name].Wait(time.Minute); err != nil {
			t.Fatalf("restart %d: %v", i, err)
		}
		s.start(s.configs[name])
		s.registered(name)
		s.must(s.collector.WaitFor(ctx, before+50, 20*time.Second)) // the load flows on
	}
	stop()
	s.must(<-done)
	if v := s.check(0, 20*time.Second); v.Duplicates != 0 {
		t.Errorf("%d duplicates", v.Duplicates)
	}
}

// A relay that stands still for three lease times is replaced; when it goes on it changes nothing.
func TestAStoppedRelayIsReplacedAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, 16, &Workload{Keys: 200, Writers: 4, Payload: 64, Pause: time.Millisecond, Seed: 3})
	lease := time.Second
	for i := range 2 {
		s.start(RelayConfig{Name: fmt.Sprintf("relay-%d", i), Lease: lease, Window: 50})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	s.must(s.collector.WaitFor(ctx, 200, 20*time.Second))
	for i := range 2 {
		name := fmt.Sprintf("relay-%d", i)
		s.signal(name, syscall.SIGSTOP)
		pause(ctx, 3*lease)
		s.signal(name, syscall.SIGCONT)
		s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+200, 20*time.Second))
	}
	stop()
	s.must(<-done)
	if v := s.check(3*lease+5*time.Second, 20*time.Second); v.Duplicates > 2*50 { // one window for each take-over
		t.Errorf("%d duplicates: more than the windows of two take-overs", v.Duplicates)
	}
}

// After kill -9 the first message of the dead relay's keys is out within lease + 2 s.
func TestAKilledRelaysKeysGoOnWithinALeaseAndTwoSeconds(t *testing.T) {
	t.Parallel()
	s := open(t, 16, &Workload{Keys: 64, Writers: 4, Payload: 64, Pause: 5 * time.Millisecond, Seed: 4})
	lease := 2 * time.Second
	s.start(RelayConfig{Name: "first", Lease: lease, Window: 50})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.work.Run(ctx) }()
	s.must(s.collector.WaitFor(ctx, 200, 20*time.Second))
	s.signal("first", syscall.SIGKILL)
	killed := time.Now()
	s.start(RelayConfig{Name: "second", Lease: lease, Window: 50})
	pause(ctx, 100*time.Millisecond) // what the broker still had from the first one
	s.must(s.collector.WaitFor(ctx, s.collector.Distinct()+1, 20*time.Second))
	if took := time.Since(killed); took > lease+2*time.Second {
		t.Errorf("the first message came %v after the kill, want at most %v", took, lease+2*time.Second)
	} else {
		t.Logf("the first message came %v after the kill (lease %v)", took, lease)
	}
	stop()
	s.must(<-done)
	s.checkTakeOvers(lease+4*time.Second, 20*time.Second)
}
