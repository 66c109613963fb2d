package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store/postgres"
)

// A publisher that needs 100 ms for a message: messages of different keys, and those without one, do not wait for each
// other; those of one key do.
func TestASlowPublisherIsSlowForOneKeyOnly(t *testing.T) {
	t.Parallel()
	const needs = 100 * time.Millisecond
	for _, c := range []struct {
		name        string
		blocks      bool // Publish itself takes the time; else the answer comes later
		n           int
		key         func(i int) string
		least, most time.Duration
	}{
		{"100 keys", false, 100, func(i int) string { return fmt.Sprint("key-", i) }, needs, time.Second},
		{"100 keys, Publish blocks", true, 100, func(i int) string { return fmt.Sprint("key-", i) }, needs, time.Second},
		{"100 without key", false, 100, func(int) string { return "" }, needs, time.Second},
		{"100 without key, Publish blocks", true, 100, func(int) string { return "" }, needs, time.Second},
		{"10 of one key", false, 10, func(int) string { return "key" }, 10 * needs, 20 * needs},
		{"10 of one key, Publish blocks", true, 10, func(int) string { return "key" }, 10 * needs, 20 * needs},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, 16, &Workload{})
			p := newTimed(&slow{needs: needs, blocks: c.blocks})
			s.inProcess(p, nil)
			began := time.Now()
			s.insert(c.n, c.key)
			p.waitFor(t, c.n)
			took := time.Since(began)
			if took < c.least || took > c.most {
				t.Errorf("%d messages took %v, want %v to %v", c.n, took, c.least, c.most)
			}
			t.Logf("%d messages took %v", c.n, took.Round(time.Millisecond))
		})
	}
}

// One key among 1,000 fails all the time: the others are as fast as before. The bound is generous, because tests share
// the machine; BenchmarkPoison measures.
func TestAPoisonKeyDoesNotSlowTheOthers(t *testing.T) {
	t.Parallel()
	s := open(t, 64, &Workload{})
	publisher := s.jetStream()
	p := newTimed(publisher)
	s.inProcess(p, func(sink *relay.Sink) {
		sink.Retry = core.Retry{First: 5 * time.Millisecond, Max: 20 * time.Millisecond, Attempts: -1}
	})
	without := s.latencies(p, 1000)
	p.fail("key-7")
	with := s.latencies(p, 1000)
	if with > 3*without+50*time.Millisecond {
		t.Errorf("the 99th percentile of the other keys is %v, without the poison key %v", with, without)
	}
	t.Logf("the 99th percentile of the other keys is %v, without the poison key %v", with, without)
}

// BenchmarkPoison is the 99th percentile of the time from a commit to the broker's acknowledgement, for 1,000 keys of which
// one fails all the time, beside the same without the failing key: runs of 3,000 messages in turn, the median of each kind.
func BenchmarkPoison(b *testing.B) {
	s := open(b, 64, &Workload{})
	p := newTimed(s.jetStream())
	s.inProcess(p, func(sink *relay.Sink) {
		sink.Retry = core.Retry{First: 100 * time.Millisecond, Max: time.Second, Attempts: -1}
	})
	s.latencies(p, 1000)
	var with, without []time.Duration
	for b.Loop() {
		p.fail("")
		without = append(without, s.latencies(p, 3000))
		p.fail("key-7")
		with = append(with, s.latencies(p, 3000))
	}
	slices.Sort(with)
	slices.Sort(without)
	bad, good := with[len(with)/2], without[len(without)/2]
	b.ReportMetric(good.Seconds()*1e3, "p99-without-ms")
	b.ReportMetric(bad.Seconds()*1e3, "p99-with-ms")
	b.ReportMetric(float64(bad)/float64(good), "ratio")
}

// A dead letter holds its key, and nobody else; after a requeue, or a discard, the key goes on in order.
func TestAKeyGoesOnInOrderAfterRequeueOrDiscard(t *testing.T) {
	t.Parallel()
	for _, act := range []string{"requeue", "discard"} {
		t.Run(act, func(t *testing.T) {
			t.Parallel()
			s := open(t, 16, &Workload{})
			p := newTimed(s.jetStream())
			s.inProcess(p, func(sink *relay.Sink) {
				sink.Retry = core.Retry{First: time.Millisecond, Max: time.Millisecond, Attempts: 2}
			})
			p.fail("poison")
			s.insert(30, func(i int) string {
				if i%3 == 0 {
					return "poison"
				}
				return fmt.Sprint("key-", i)
			})
			p.waitFor(t, 20)
			for s.count(`SELECT count(*) FROM %q.outbox_dead`) != 1 || s.count(`SELECT count(*) FROM %q.outbox_parked`) != 9 {
				pause(t.Context(), 5*time.Millisecond)
			}
			p.fail("")
			want := []string{"0", "3", "6", "9", "12", "15", "18", "21", "24", "27"}
			call := `SELECT %q.outbox_requeue('jetstream', (SELECT id FROM %q.outbox_dead), false)::text`
			if act == "discard" {
				call = `SELECT %q.outbox_discard('jetstream', (SELECT id FROM %q.outbox_dead), 'it is wrong')::text`
				want = want[1:]
			}
			_, err := s.pool.Exec(t.Context(), fmt.Sprintf(call, s.schema, s.schema))
			s.must(err)
			acted := time.Now()
			p.waitFor(t, 21)
			if took := time.Since(acted); took > raceFactor*time.Second {
				t.Errorf("the relay saw the %s after %v, want within 1 s (%d s with the race detector)", act, took, raceFactor)
			}
			p.waitFor(t, 20+len(want))
			if got := p.of("poison"); !slices.Equal(got, want) {
				t.Errorf("the key's messages came as %v, want %v", got, want)
			}
		})
	}
}

// jetStream is a publisher on the scene's stream.
func (s *scene) jetStream() broker.Publisher {
	s.t.Helper()
	p, err := nats.Dial(s.nats, nats.Options{Name: s.t.Name()}, nats.Config{Stream: s.stream})
	s.must(err)
	s.t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// inProcess runs a relay in this process until the test ends, and returns when it holds every partition.
func (s *scene) inProcess(p broker.Publisher, tune func(*relay.Sink)) {
	s.t.Helper()
	st, err := postgres.Open(s.t.Context(), s.pool, postgres.Config{Schema: s.schema})
	s.must(err)
	sink := relay.Sink{Name: "jetstream", Publisher: p}
	if tune != nil {
		tune(&sink)
	}
	r, err := relay.New(relay.Config{Store: st, Name: "in-process", Sinks: []relay.Sink{sink}})
	s.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		_ = st.Close()
	})
	for s.count(`SELECT count(*) FROM %q.outbox_partitions WHERE relay IS NOT NULL`) == 0 || s.count(`SELECT count(*) FROM %q.outbox_partitions WHERE relay IS NULL`) > 0 {
		pause(s.t.Context(), 5*time.Millisecond)
	}
}

// insert writes n messages, whose payload is their number, in one transaction.
func (s *scene) insert(n int, key func(i int) string) {
	s.t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = key(i)
	}
	_, err := s.pool.Exec(s.t.Context(), fmt.Sprintf(`INSERT INTO %q.outbox_messages (topic, type, partition_key, payload)
		SELECT $1, 'Made', key, convert_to((i - 1)::text, 'UTF8') FROM unnest($2::text[]) WITH ORDINALITY u(key, i) ORDER BY i`, s.schema), s.work.Topic, keys)
	s.must(err)
}

// latencies writes n messages of 1,000 keys one after the other, and returns the 99th percentile of the time between the
// answer to a commit and the broker's, of the keys that do not fail.
func (s *scene) latencies(p *timed, n int) time.Duration {
	s.t.Helper()
	committed := make(map[outbox.ID]time.Time, n)
	failing := p.failing()
	for i := range n {
		id, key := outbox.NewID(), fmt.Sprintf("key-%d", i%1000)
		_, err := s.pool.Exec(s.t.Context(), fmt.Sprintf(`INSERT INTO %q.outbox_messages (id, topic, type, partition_key, payload) VALUES ($1, $2, 'Made', $3, '')`, s.schema),
			[16]byte(id), s.work.Topic, key)
		s.must(err)
		if key != failing {
			committed[id] = time.Now()
		}
	}
	var all []time.Duration
	for id, at := range committed {
		all = append(all, p.at(s.t, id).Sub(at))
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// slow takes every message, after a time.
type slow struct {
	needs  time.Duration
	blocks bool
}

func (*slow) Capabilities() broker.Capabilities { return broker.Capabilities{} }
func (*slow) Check(context.Context) error       { return nil }
func (*slow) Close(context.Context) error       { return nil }

func (p *slow) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	if p.blocks {
		pause(ctx, p.needs)
	}
	for i := range batch {
		if p.blocks {
			done(i, broker.Result{Outcome: broker.Accepted})
			continue
		}
		time.AfterFunc(p.needs, func() { done(i, broker.Result{Outcome: broker.Accepted}) })
	}
}

// timed notes when each message was accepted, and makes one key fail.
type timed struct {
	broker.Publisher
	mu       sync.Mutex
	poison   string
	accepted map[outbox.ID]time.Time
	payloads map[string][]string // by key, in the order of the answers
	changed  *sync.Cond
}

func newTimed(p broker.Publisher) *timed {
	t := &timed{Publisher: p, accepted: map[outbox.ID]time.Time{}, payloads: map[string][]string{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

func (p *timed) fail(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poison = key
}

func (p *timed) failing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.poison
}

func (p *timed) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	poison := p.failing()
	var good []broker.Envelope
	var index []int
	for i, e := range batch {
		if e.Key != "" && e.Key == poison {
			done(i, broker.Result{Outcome: broker.Retry, Code: "harness/fault", Err: fmt.Errorf("failed on purpose")})
			continue
		}
		good, index = append(good, e), append(index, i)
	}
	if len(good) == 0 {
		return
	}
	p.Publisher.Publish(ctx, good, func(i int, r broker.Result) {
		if r.Outcome == broker.Accepted {
			p.note(good[i].Record)
		}
		done(index[i], r)
	})
}

func (p *timed) note(r *outbox.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted[r.ID] = time.Now()
	p.payloads[r.Key] = append(p.payloads[r.Key], string(r.Payload))
	p.changed.Broadcast()
}

func (p *timed) of(key string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.payloads[key])
}

// until waits for a condition on what was accepted.
func (p *timed) until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	late := time.AfterFunc(30*time.Second, p.changed.Broadcast)
	defer late.Stop()
	deadline := time.Now().Add(30 * time.Second)
	p.mu.Lock()
	defer p.mu.Unlock()
	for !condition() {
		if !time.Now().Before(deadline) {
			t.Fatalf("within 30 s there were not: %s (%d messages were accepted)", what, len(p.accepted))
		}
		p.changed.Wait()
	}
}

func (p *timed) waitFor(t testing.TB, n int) {
	t.Helper()
	p.until(t, fmt.Sprintf("%d messages", n), func() bool { return len(p.accepted) >= n })
}

func (p *timed) at(t testing.TB, id outbox.ID) (at time.Time) {
	t.Helper()
	p.until(t, "message "+id.String(), func() bool { at = p.accepted[id]; return !at.IsZero() })
	return at
}
