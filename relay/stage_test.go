package relay_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// stage is an outbox and a broker in memory, with somebody who watches what the relay asks of them.
type stage struct {
	*testing.T
	db     *memstore.DB
	broker *membroker.Broker
	start  time.Time

	mu        sync.Mutex
	relay     store.Relay
	retention store.Retention
	reads     moments
	renews    moments
	settles   moments
	sends     moments // one of each message
	probes    moments
	retains   moments
	page      int // the most messages of one read
	bytes     int // the most bytes that a read asked for
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{T: t, db: memstore.New(memstore.Config{Partitions: 8}), broker: membroker.New(membroker.Config{Positions: true}), start: time.Now()}
}

// moments are when something happened.
type moments struct {
	mu   sync.Mutex
	list []time.Duration
}

func (m *moments) note(s *stage, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range n {
		m.list = append(m.list, s.after())
	}
}

func (m *moments) all() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

func (m *moments) any() bool { return len(m.all()) > 0 }

func (m *moments) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = nil
}

// within is how many lie within a time.
func (m *moments) within(from, to time.Duration) (n int) {
	for _, at := range m.all() {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// after is the time since the stage was set.
func (s *stage) after() time.Duration { return time.Since(s.start) }

func wait(d time.Duration) { <-time.After(d) }

type watchedStore struct {
	store.Store
	s *stage
}

func (w watchedStore) Join(ctx context.Context, r store.Relay, k store.Sink) (store.Session, error) {
	w.s.mu.Lock()
	w.s.relay = r
	w.s.mu.Unlock()
	session, err := w.Store.Join(ctx, r, k)
	if err != nil {
		return nil, err
	}
	return watchedSession{session, w.s}, nil
}

func (w watchedStore) Retain(ctx context.Context, r store.Retention) (store.Retained, error) {
	w.s.mu.Lock()
	w.s.retention = r
	w.s.mu.Unlock()
	w.s.retains.note(w.s, 1)
	return w.Store.(store.Retainer).Retain(ctx, r) //nolint:forcetypeassert // memstore's is one
}

type watchedSession struct {
	store.Session
	s *stage
}

func (w watchedSession) Renew(ctx context.Context, take bool) (store.Lease, error) {
	w.s.renews.note(w.s, 1)
	return w.Session.Renew(ctx, take)
}

func (w watchedSession) Read(ctx context.Context, room store.Room) (store.Page, error) {
	w.s.reads.note(w.s, 1)
	p, err := w.Session.Read(ctx, room)
	n := 0
	for _, part := range p.Parts {
		n += len(part.Records)
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.page, w.s.bytes = max(w.s.page, n), max(w.s.bytes, room.Bytes)
	return p, err
}

// wakingStore is a watchedStore whose sessions hear of commits, as those of the database do; the others show how a relay polls.
type wakingStore struct{ watchedStore }

type wakingSession struct {
	watchedSession
	store.Waker
}

func (w wakingStore) Join(ctx context.Context, r store.Relay, k store.Sink) (store.Session, error) {
	session, err := w.watchedStore.Join(ctx, r, k)
	if err != nil {
		return nil, err
	}
	watched, _ := session.(watchedSession)
	waker, _ := watched.Session.(store.Waker)
	return wakingSession{watched, waker}, nil
}

// waking is the stage's configuration with hints.
func (s *stage) waking() relay.Config {
	c := s.config()
	c.Store = wakingStore{watchedStore{s.db.Open(nil), s}}
	return c
}

func (w watchedSession) Settle(ctx context.Context, m store.Settlement) (store.Settled, error) {
	w.s.settles.note(w.s, 1)
	return w.Session.Settle(ctx, m)
}

type watchedPublisher struct {
	broker.Publisher
	s *stage
}

func (w watchedPublisher) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	w.s.sends.note(w.s, len(batch))
	w.Publisher.Publish(ctx, batch, done)
}

func (w watchedPublisher) Check(ctx context.Context) error {
	w.s.probes.note(w.s, 1)
	return w.Publisher.Check(ctx)
}

func (s *stage) config() relay.Config {
	return relay.Config{
		Store: watchedStore{s.db.Open(nil), s},
		Sinks: []relay.Sink{{Name: "test", Publisher: watchedPublisher{s.broker.Publisher(), s}}},
	}
}

// run runs a relay until stop, which returns how long it took to stop.
func (s *stage) run(c relay.Config) (stop func() time.Duration) {
	s.Helper()
	r, err := relay.New(c)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	return func() time.Duration {
		from := s.after()
		cancel()
		<-done
		return s.after() - from
	}
}

// write commits messages of a topic; an empty key is none.
func (s *stage) write(topic, key string, sizes ...int) (ids []outbox.ID) {
	s.Helper()
	tx, w := s.db.Begin(), memstore.NewWriter(memstore.WriterConfig{})
	for _, size := range sizes {
		receipt, err := w.Write(s.Context(), tx, outbox.Message{Topic: topic, Type: "Made", Key: key, Payload: make([]byte, size)})
		if err != nil {
			s.Fatal(err)
		}
		ids = append(ids, receipt.ID)
	}
	if err := tx.Commit(); err != nil {
		s.Fatal(err)
	}
	return ids
}

func (s *stage) fail(f membroker.Fault, topic string) {
	s.broker.SetFaults(membroker.When(func(e broker.Envelope) bool { return topic == "" || e.Topic == topic }, f))
}

// until is the time at which something holds, to the millisecond or a thousandth of it.
func (s *stage) until(holds func() bool) time.Duration {
	s.Helper()
	for !holds() {
		if s.after() > 24*time.Hour {
			s.Fatal("not within a day")
		}
		wait(max(time.Millisecond, s.after()/1000))
	}
	return s.after()
}

func (s *stage) arrived(n int) func() bool { return func() bool { return s.broker.Len() >= n } }

func (s *stage) dead() int {
	s.Helper()
	list, err := s.db.Admin().Dead(s.Context(), store.Filter{})
	if err != nil {
		s.Fatal(err)
	}
	return len(list.Dead)
}

// between is a figure of which only the bounds are known.
func between[T cmp.Ordered](least, most T) func(T) bool {
	return func(v T) bool { return v >= least && v <= most }
}

// joined is the relay that registered last.
func (s *stage) joined() store.Relay {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relay
}
