package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// bench is an outbox and a broker in memory.
type bench struct {
	t      *testing.T
	db     *memstore.DB
	broker *membroker.Broker
	writer *memstore.Writer
	log    *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newBench(t *testing.T, b membroker.Config) *bench {
	t.Helper()
	return &bench{
		t: t, db: memstore.New(memstore.Config{Partitions: 8}), broker: membroker.New(b),
		writer: memstore.NewWriter(memstore.WriterConfig{}), log: &logBuffer{},
	}
}

func (b *bench) config() relay.Config {
	sink := relay.Sink{
		Name: "test", Publisher: b.broker.Publisher(), PublishTimeout: time.Second,
		Retry: core.Retry{First: 10 * time.Millisecond, Max: 50 * time.Millisecond}, Breaker: core.Breaker{First: 10 * time.Millisecond},
	}
	sink.Settle.Every = 2 * time.Millisecond
	return relay.Config{
		Store: b.db.Open(nil), Sinks: []relay.Sink{sink}, Lease: 600 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
}

// run runs a relay; stop ends it gracefully and returns what Run returned.
func (b *bench) run(c relay.Config) (stop func() error) {
	b.t.Helper()
	r, err := relay.New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() {
			cancel()
			select {
			case result = <-done:
			case <-time.After(20 * time.Second):
				result = errors.New("the relay did not stop")
			}
		})
		return result
	}
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

func (b *bench) write(key string, n int) {
	b.t.Helper()
	tx := b.db.Begin()
	m := outbox.Message{Topic: "orders", Type: "Made", Key: key, Payload: fmt.Appendf(nil, "%d", n)}
	if _, err := b.writer.Write(b.t.Context(), tx, m); err != nil {
		b.t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

// until waits for a condition.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within 20s; %d messages arrived\n%s", what, b.broker.Len(), b.log)
		}
		select {
		case <-b.t.Context().Done():
			b.t.Fatal("the test ended")
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// arrived counts distinct messages, and checks that first copies of each key are in order.
func (b *bench) arrived() (distinct, duplicates int) {
	b.t.Helper()
	seen := map[outbox.ID]bool{}
	last := map[string]int{}
	for _, m := range b.broker.All() {
		if seen[m.ID] {
			duplicates++
			continue
		}
		seen[m.ID] = true
		var n int
		_, _ = fmt.Sscan(string(m.Payload), &n)
		if m.Key != "" && n <= last[m.Key] {
			b.t.Fatalf("key %s: message %d came after %d", m.Key, n, last[m.Key])
		}
		last[m.Key] = n
	}
	return len(seen), duplicates
}

func (b *bench) wantArrived(n int) (duplicates int) {
	b.t.Helper()
	b.until(fmt.Sprintf("%d messages arrive", n), func() bool {
		got, _ := b.arrived()
		return got >= n
	})
	got, duplicates := b.arrived()
	if got != n {
		b.t.Fatalf("%d messages arrived, want %d", got, n)
	}
	return duplicates
}

func TestRelayPublishesInOrderAndStopsGracefully(t *testing.T) {
	t.Parallel()
	b := newBench(t, membroker.Config{})
	for i := range 500 {
		b.write(fmt.Sprintf("k%d", i%7), i+1)
	}
	stop := b.run(b.config())
	for i := range 500 {
		b.write(fmt.Sprintf("k%d", i%7), 1000+i)
	}
	if d := b.wantArrived(1000); d != 0 {
		t.Errorf("%d duplicates", d)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	relays, err := b.db.Admin().Relays(t.Context())
	if err != nil || len(relays) != 0 {
		t.Errorf("after a graceful end %v are registered (%v)", relays, err)
	}
	b.write("k0", 5000)
	again := b.run(b.config())
	if d := b.wantArrived(1001); d != 0 {
		t.Errorf("%d duplicates after a restart", d)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheMessageThatMakesThePublisherPanicPaysForIt(t *testing.T) {
	t.Parallel()
	poison := func(e broker.Envelope) bool { return e.Key == "poison" }
	b := newBench(t, membroker.Config{Dedup: time.Minute, Faults: []membroker.Rule{membroker.When(poison, membroker.Fault{Panic: true})}})
	for i := range 50 {
		b.write(fmt.Sprintf("k%d", i%5), i+1)
		if i == 20 {
			b.write("poison", 1)
		}
	}
	c := b.config()
	c.Sinks[0].Retry.Attempts = 2
	b.run(c)
	b.wantArrived(50)
	b.until("the poison message is dead", func() bool {
		dead, err := b.db.Admin().Dead(t.Context(), store.Filter{Sink: "test"})
		return err == nil && len(dead.Dead) == 1 && dead.Dead[0].Key == "poison" && dead.Dead[0].Code == core.CodeAttemptsExhausted
	})
	dead, err := b.db.Admin().Dead(t.Context(), store.Filter{Sink: "test", ID: mustDead(t, b)})
	if err != nil || len(dead.Dead) != 1 || len(dead.Dead[0].Tries) != 2 || dead.Dead[0].Tries[0].Code != broker.CodePanic {
		t.Errorf("tries: %+v (%v), want two with %s", dead, err, broker.CodePanic)
	}
}

func mustDead(t *testing.T, b *bench) outbox.ID {
	t.Helper()
	dead, err := b.db.Admin().Dead(t.Context(), store.Filter{Sink: "test"})
	if err != nil || len(dead.Dead) != 1 {
		t.Fatalf("dead letters: %v (%v)", dead, err)
	}
	return dead.Dead[0].ID
}

// The next try of a message, and the number of those before it, are in the database: a restart neither hastens it nor
// begins to count again.
func TestTheNextTrySurvivesARestart(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var tries []time.Time
	fails := func(e broker.Envelope) bool {
		mu.Lock()
		defer mu.Unlock()
		if e.Key == "k" {
			tries = append(tries, time.Now())
		}
		return e.Key == "k" && len(tries) == 1
	}
	b := newBench(t, membroker.Config{Faults: []membroker.Rule{membroker.When(fails, membroker.Fault{Outcome: broker.Retry})}})
	const backoff = 700 * time.Millisecond
	c := b.config()
	c.Sinks[0].Retry = core.Retry{Fixed: true, First: backoff, Max: backoff}
	b.write("k", 1)
	b.write("k", 2)
	stop := b.run(c)
	b.until("the message is parked", func() bool {
		list, err := b.db.Admin().Messages(t.Context(), store.Filter{Sink: "test", State: store.StateParked})
		return err == nil && len(list.Messages) == 2
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.run(withStore(c, b))
	b.write("other", 1)
	b.wantArrived(3)
	mu.Lock()
	defer mu.Unlock()
	if between := tries[1].Sub(tries[0]); between < backoff-50*time.Millisecond {
		t.Errorf("the second try came %v after the first, want %v", between, backoff)
	}
	if first := b.broker.All()[0]; first.Key != "other" {
		t.Errorf("key %s came first: another key waited for the try", first.Key)
	}
}

func TestAScheduledMessageGoesOutWhenItIsDueAndBlocksNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t, membroker.Config{})
	due := time.Now().Add(600 * time.Millisecond)
	tx := b.db.Begin()
	m := outbox.Message{Topic: "orders", Type: "Made", Key: "k", Payload: []byte("3"), AvailableAt: due}
	if _, err := b.writer.Write(t.Context(), tx, m); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b.run(b.config())
	b.write("k", 1) // the same key does not wait
	b.write("k", 2)
	b.wantArrived(2)
	if now := time.Now(); !now.Before(due) {
		t.Fatalf("the others came at %v, when the scheduled one was due", now)
	}
	b.wantArrived(3)
	if now := time.Now(); now.Before(due) {
		t.Errorf("it came at %v, before it was due (%v)", now, due)
	}
}

func TestAPublisherThatNeverAnswersHoldsOnlyItsOwnMessages(t *testing.T) {
	t.Parallel()
	stalls := membroker.AtMost(1, membroker.When(func(e broker.Envelope) bool { return e.Key == "slow" }, membroker.Fault{Stall: true}))
	b := newBench(t, membroker.Config{Faults: []membroker.Rule{stalls}})
	b.write("slow", 1)
	b.write("slow", 2)
	for i := range 20 {
		b.write(fmt.Sprintf("k%d", i), 1)
	}
	c := b.config()
	c.Sinks[0].PublishTimeout = 300 * time.Millisecond
	b.run(c)
	b.wantArrived(22)
}

func TestARelayWaitsForItsBrokerAndSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t, membroker.Config{})
	b.broker.SetUnavailable(true)
	b.write("k", 1)
	b.run(b.config())
	b.until("the log says that it waits", func() bool { return strings.Contains(b.log.String(), "waiting for the broker") })
	b.broker.SetUnavailable(false)
	b.wantArrived(1)
	b.until("the log says that it goes on", func() bool { return strings.Contains(b.log.String(), "takes messages again") })
	if dead, err := b.db.Admin().Dead(t.Context(), store.Filter{}); err != nil || len(dead.Dead) != 0 {
		t.Errorf("dead letters: %v (%v)", dead, err)
	}
}

func TestASecondRelayOfTheSameNameWaitsAndSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t, membroker.Config{})
	first := b.config()
	first.Name = "the-one"
	stop := b.run(first)
	b.write("k", 1)
	b.wantArrived(1)
	second := b.config()
	second.Name = "the-one"
	b.run(second)
	b.until("the second says that it waits", func() bool { return strings.Contains(b.log.String(), "a live relay has this name") })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.write("k", 2)
	b.wantArrived(2)
}

func TestWhileTheDatabaseCannotBeReachedTheRelayWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, membroker.Config{})
	var mu sync.Mutex
	down := true
	b.db.SetFault(func(c memstore.Call) memstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		if down && c.Op != memstore.OpCommit {
			return memstore.Fault{Err: errors.New("connection refused")}
		}
		return memstore.Fault{}
	})
	b.write("k", 1)
	b.run(b.config())
	b.until("the log says that it waits", func() bool { return strings.Contains(b.log.String(), "waiting for the database") })
	mu.Lock()
	down = false
	mu.Unlock()
	b.wantArrived(1)
}

// Answers of the database are lost, calls fail, publishes fail or are not answered, relays come and go: nothing is lost
// and first copies come in order.
func TestRelaysKeepTheirPromisesWhenEverythingFailsNowAndThen(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, membroker.Config{Faults: []membroker.Rule{
				membroker.Chance(seed, 0.05, membroker.Fault{Outcome: broker.Retry}),
				membroker.Chance(seed+100, 0.02, membroker.LostAck()),
				membroker.Chance(seed+200, 0.01, membroker.Fault{Outcome: broker.Unavailable}),
			}})
			rng := rand.New(rand.NewPCG(seed, 9))
			b.db.SetFault(func(c memstore.Call) memstore.Fault { // called under the database's lock
				switch n := rng.IntN(200); {
				case c.Op == memstore.OpCommit || c.Op == memstore.OpJoin:
				case n == 0:
					return memstore.Fault{Lost: true}
				case n == 1:
					return memstore.Fault{Err: errors.New("reset by peer")}
				}
				return memstore.Fault{}
			})
			c := b.config()
			c.Sinks[0].Retry.Attempts = -1
			c.Sinks[0].PublishTimeout = 200 * time.Millisecond
			b.run(c)
			next := map[string]int{}
			for i := range 600 {
				key := fmt.Sprintf("k%d", i%11)
				next[key]++
				b.write(key, next[key])
				switch i {
				case 200, 400:
					b.run(withStore(c, b))
				}
			}
			b.wantArrived(600)
		})
	}
}

func withStore(c relay.Config, b *bench) relay.Config {
	c.Store = b.db.Open(nil)
	c.Sinks = append([]relay.Sink(nil), c.Sinks...)
	c.Sinks[0].Publisher = b.broker.Publisher()
	return c
}

func TestNewReportsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := relay.New(relay.Config{
		Lease: time.Second, Heartbeat: time.Second, PollMin: 2, PollMax: 1,
		Sinks:  []relay.Sink{{Name: "Bad Name", OnDead: "explode"}, {Name: "two", Selection: outbox.Selection{Topics: []outbox.Pattern{"a..b"}}}, {Name: "two", Disabled: true, Start: store.Start{Latest: true, Since: time.Unix(0, 0)}}},
		Topics: []relay.Topic{{Match: "a.>.b"}},
	})
	for _, want := range []string{
		"Store is missing", "is there twice", "Sinks[1].Topics[0]", "Latest and Since", "Heartbeat", "PollMin", "Bad Name", "Publisher is missing", "explode", "> must be the last word",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("code is %q", outbox.CodeOf(err))
	}
}
