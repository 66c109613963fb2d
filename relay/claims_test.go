package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
)

// claimed is a stage whose publisher claims partitions, and what the relay asked of it and of the database, in order.
type claimed struct {
	*stage
	mu      sync.Mutex
	log     []string
	lose    int           // so many messages are answered as unclaimed
	gone    atomic.Bool   // the database says that the relay owns nothing
	claims  chan struct{} // one for each claim
	settled []outbox.ID
}

func newClaimed(t *testing.T) (*claimed, relay.Config) {
	t.Helper()
	s := &claimed{stage: newStage(t), claims: make(chan struct{}, 100)}
	s.broker = membroker.New(membroker.Config{Positions: true, Pipeline: true})
	c := s.config()
	c.Store = claimedStore{c.Store, s}
	c.Sinks[0].Publisher = claimingPublisher{c.Sinks[0].Publisher, s}
	return s, c
}

func (s *claimed) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

type claimedStore struct {
	store.Store
	s *claimed
}

func (c claimedStore) Join(ctx context.Context, r store.Relay, k store.Sink) (store.Session, error) {
	session, err := c.Store.Join(ctx, r, k)
	return claimedSession{session, c.s}, err
}

type claimedSession struct {
	store.Session
	s *claimed
}

func (c claimedSession) Renew(ctx context.Context, take bool) (store.Lease, error) {
	c.s.say("renew")
	lease, err := c.Session.Renew(ctx, take)
	if c.s.gone.Load() {
		lease.Owned = nil
	}
	return lease, err
}

func (c claimedSession) Settle(ctx context.Context, m store.Settlement) (store.Settled, error) {
	settled, err := c.Session.Settle(ctx, m)
	c.s.say("settle %d", m.Published)
	return settled, err
}

type claimingPublisher struct {
	broker.Publisher
	s *claimed
}

func (p claimingPublisher) Capabilities() broker.Capabilities {
	c := p.Publisher.Capabilities()
	c.Claims = true
	return c
}

func (p claimingPublisher) Claim(_ context.Context, partitions []int) error {
	for _, one := range partitions {
		p.s.say("claim %d", one)
	}
	p.s.claims <- struct{}{}
	return nil
}

func (p claimingPublisher) Settled(ms []broker.Published) {
	p.s.say("settled %d", len(ms))
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, m := range ms {
		p.s.settled = append(p.s.settled, m.ID)
	}
}

func (p claimingPublisher) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	p.s.mu.Lock()
	lose := p.s.lose
	p.s.lose = 0
	p.s.mu.Unlock()
	for i := range batch {
		if p.s.say("publish %d", batch[i].Partition); lose > 0 {
			done(i, broker.Result{Outcome: broker.Throttled, Code: broker.CodeUnclaimed, After: time.Millisecond})
		}
	}
	if lose == 0 {
		p.Publisher.Publish(ctx, batch, done)
	}
}

// Before the first message of a partition the publisher claims it, and then the database is asked once more who owns it.
func TestAPartitionIsClaimedAndItsLeaseAskedForBeforeItsFirstMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := newClaimed(t)
		stop := s.run(c)
		for i := range 20 {
			s.write("orders", fmt.Sprint("key-", i), 1, 1)
		}
		s.until(func() bool { return s.broker.Len() == 40 })
		s.mu.Lock()
		log := slices.Clone(s.log)
		s.mu.Unlock()
		stop()
		seen := map[string]bool{}
		for i, line := range log {
			partition, ok := strings.CutPrefix(line, "publish ")
			if !ok || seen[partition] {
				continue
			}
			seen[partition] = true
			at := slices.Index(log, "claim "+partition)
			if at < 0 || at > i || !slices.Contains(log[at:i], "renew") {
				t.Errorf("partition %s: claimed at %d of %v, published at %d", partition, at, log[:i], i)
			}
		}
		if len(seen) < 2 {
			t.Errorf("%d partitions were published", len(seen))
		}
	})
}

// A relay that finds after its claim that it owns nothing any more publishes nothing.
func TestAClaimWithoutALeaseIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := newClaimed(t)
		c.Sinks[0].Publisher = claimThen{claimingPublisher{c.Sinks[0].Publisher.(claimingPublisher).Publisher, s}, func() { s.gone.Store(true) }}
		stop := s.run(c)
		s.write("orders", "k", 1, 1, 1)
		<-s.claims
		wait(time.Minute)
		stop()
		if n := s.broker.Len(); n > 0 {
			t.Errorf("%d messages were published", n)
		}
	})
}

// claimThen does something right after a claim.
type claimThen struct {
	claimingPublisher
	then func()
}

func (p claimThen) Claim(ctx context.Context, partitions []int) error {
	defer p.then()
	return p.claimingPublisher.Claim(ctx, partitions)
}

// A claim that the publisher has lost is made again, and costs the message nothing.
func TestALostClaimIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := newClaimed(t)
		c.Sinks[0].Retry.Attempts = 1
		stop := s.run(c)
		s.write("orders", "k", 1)
		s.until(func() bool { return s.broker.Len() == 1 })
		<-s.claims
		s.mu.Lock()
		s.lose = 1
		s.mu.Unlock()
		s.write("orders", "k", 1)
		s.until(func() bool { return s.broker.Len() == 2 })
		<-s.claims
		stop()
		if n := s.dead(); n > 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// What the database knows as published is told to the publisher, each message once, after the settlement; and nothing else is.
func TestAClaimerIsToldWhatIsSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := newClaimed(t)
		c.Sinks[0].Retry.Attempts = 3
		s.broker.SetFaults(
			membroker.When(func(e broker.Envelope) bool { return e.Topic == "bad" }, membroker.Fault{Outcome: broker.Rejected}),
			membroker.When(func(e broker.Envelope) bool { return e.Topic == "weak" && e.Attempt == 1 }, membroker.Fault{Outcome: broker.Retry}),
		)
		stop := s.run(c)
		want := append(s.write("orders", "a", 1, 1, 1, 1, 1), s.write("weak", "b", 1, 1, 1)...)
		want = append(want, s.write("weak", "", 1, 1)...)
		s.write("bad", "c", 1)
		s.until(func() bool { return s.broker.Len() == 10 && s.dead() == 1 })
		wait(time.Second)
		stop()
		byText := func(a, b outbox.ID) int { return strings.Compare(a.String(), b.String()) }
		slices.SortFunc(want, byText)
		slices.SortFunc(s.settled, byText)
		if !slices.Equal(s.settled, want) {
			t.Errorf("told of %d messages, want the 10 that were published: %v, want %v", len(s.settled), s.settled, want)
		}
		told := 0
		for _, line := range s.log {
			var n int
			if _, err := fmt.Sscanf(line, "settle %d", &n); err == nil {
				told += n
			} else if _, err := fmt.Sscanf(line, "settled %d", &n); err == nil {
				if told -= n; told < 0 {
					t.Fatal("told before the settlement")
				}
			}
		}
	})
}
