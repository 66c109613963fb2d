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

// compareKills is how many relays are killed, and how often answers are lost: ONWARD_E2E_COMPARE_KILLS, or a number that
// fits CI.
func compareKills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("ONWARD_E2E_COMPARE_KILLS")
	if text == "" {
		return 20
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("ONWARD_E2E_COMPARE_KILLS is %q: want a number", text)
	}
	return n
}

// compareScene is a scene whose relays publish in compare mode, each through a proxy.
type compareScene struct {
	*scene
	proxies []*Proxy
	names   []string
	done    chan error
	stop    context.CancelFunc
}

func openCompare(t *testing.T, relays int, lease time.Duration, w *Workload) *compareScene {
	t.Helper()
	s := &compareScene{scene: open(t, 16, w), done: make(chan error, 1)}
	for i := range relays {
		proxy, err := NewProxy(t.Context(), s.nats)
		s.must(err)
		t.Cleanup(proxy.Close)
		s.proxies, s.names = append(s.proxies, proxy), append(s.names, fmt.Sprintf("relay-%d", i))
		s.start(RelayConfig{
			Name: s.names[i], NATS: proxy.URL, Compare: true, Lease: lease, Window: 200, BreakerFirst: 20 * time.Millisecond,
			RetryFirst: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond, Attempts: -1, PublishTimeout: 2 * time.Second,
		})
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	t.Cleanup(s.stop)
	go func() { s.done <- s.work.Run(ctx) }()
	return s
}

// flows waits until the relay has partitions, and messages come.
func (s *compareScene) flows(i int) {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(s.partitionsOf(s.names[i])) == 0; pause(s.t.Context(), 5*time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s gets no partitions", s.names[i])
		}
	}
	s.must(s.collector.WaitFor(s.t.Context(), s.collector.Distinct()+30, 30*time.Second))
}

// loseAnswers lets a relay lose what the broker says, and its connection.
func (s *compareScene) loseAnswers(i int) {
	s.t.Helper()
	s.fault("answers lost", s.names[i])
	before := s.proxies[i].Lost()
	for deadline := time.Now().Add(30 * time.Second); s.proxies[i].Lost() == before; pause(s.t.Context(), time.Millisecond) {
		s.proxies[i].LoseAnswers() // of the connection of this moment
		if time.Now().After(deadline) {
			s.t.Fatalf("%s gets no answers that could be lost", s.names[i])
		}
	}
}

// end stops the writers and checks what the stream has.
func (s *compareScene) end(beside time.Duration) {
	s.t.Helper()
	s.stop()
	s.must(<-s.done)
	if v := s.check(beside, 30*time.Second); v.Duplicates != 0 {
		s.t.Errorf("%d messages are stored twice", v.Duplicates)
	}
	if dead := s.count(`SELECT count(*) FROM %q.outbox_dead`); dead != 0 {
		s.t.Errorf("%d dead letters", dead)
	}
}

// In compare mode nothing comes twice: relays are killed with -9, and the answers of the broker are lost, under load, with
// messages that commit late, while the stream itself forgets ids after 100 ms.
func TestCompareModeStoresEachMessageOnce(t *testing.T) {
	t.Parallel()
	lease := 500 * time.Millisecond
	s := openCompare(t, 4, lease, &Workload{Keys: 60, Writers: 6, Payload: 64, Rollbacks: 0.02, Pause: time.Millisecond, Hold: 5 * time.Millisecond, Seed: 21})
	kills := compareKills(t)
	for i := range kills {
		victim, deaf := i%4, (i+2)%4
		s.flows(deaf)
		s.loseAnswers(deaf)
		s.flows(victim)
		s.signal(s.names[victim], syscall.SIGKILL)
		_ = s.relays[s.names[victim]].Wait(5 * time.Second)
		s.start(s.configs[s.names[victim]])
	}
	s.end(lease + 4*time.Second)
	t.Logf("%d kills, answers lost as often", kills)
}

// A relay that stands still for three leases and goes on when others have its keys neither repeats nor overtakes.
func TestInCompareModeAStoppedRelayRepeatsNothing(t *testing.T) {
	t.Parallel()
	lease := 500 * time.Millisecond
	s := openCompare(t, 2, lease, &Workload{Keys: 40, Writers: 4, Payload: 64, Pause: time.Millisecond, Hold: 3 * time.Millisecond, Seed: 22})
	for i := range 2 {
		s.flows(i % 2)
		s.signal(s.names[i%2], syscall.SIGSTOP)
		for len(s.partitionsOf(s.names[i%2])) > 0 { // until another one has them
			s.must(t.Context().Err())
			pause(t.Context(), 5*time.Millisecond)
		}
		s.must(s.collector.WaitFor(t.Context(), s.collector.Distinct()+100, 20*time.Second))
		s.signal(s.names[i%2], syscall.SIGCONT)
	}
	s.end(3*lease + 5*time.Second)
}
