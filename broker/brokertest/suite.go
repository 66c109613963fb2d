package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// suite is one case on one destination.
type suite struct {
	*testing.T
	Harness
	seq atomic.Int64
}

func (s *suite) complete() {
	s.Helper()
	if s.Topic == "" || s.Open == nil || s.Harness.Read == nil || (s.Stop == nil) != (s.Start == nil) {
		s.Fatal("brokertest: the harness needs Topic, Open and Read, and Stop and Start together")
	}
	if s.Patience == 0 {
		s.Patience = 30 * time.Second
	}
	if s.Less == nil {
		s.Less = numbersLess
	}
}

func numbersLess(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}

// publisher opens one and closes it with the test.
func (s *suite) publisher() broker.Publisher {
	s.Helper()
	return s.opened(s.Open(s.T))
}

// opened closes a publisher with the test.
func (s *suite) opened(p broker.Publisher) broker.Publisher {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.Patience)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

// message makes one with the next number.
func (s *suite) message(key string) broker.Envelope {
	seq := s.seq.Add(1)
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{
				ID: outbox.NewID(), Topic: s.Topic, Key: key, Type: "Tested", ContentType: "text/plain",
				Payload: []byte(key + " " + strconv.FormatInt(seq, 10)),
			},
			Seq: seq, CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC),
		},
		Epoch: 3, Lineage: "1", Attempt: 1,
	}
}

// batch makes one message for each key.
func (s *suite) batch(keys ...string) []broker.Envelope {
	batch := make([]broker.Envelope, len(keys))
	for i, key := range keys {
		batch[i] = s.message(key)
	}
	return batch
}

// answers collects what a batch is answered with.
type answers struct {
	s       *suite
	mu      sync.Mutex
	results []broker.Result
	count   []int
	open    int
	all     chan struct{} // closed when each index has an answer
}

// collect makes the collector of a batch of n.
func (s *suite) collect(n int) *answers {
	a := &answers{s: s, results: make([]broker.Result, n), count: make([]int, n), open: n, all: make(chan struct{})}
	if n == 0 {
		close(a.all)
	}
	return a
}

// start publishes a batch; the caller waits for its answers.
func (s *suite) start(ctx context.Context, p broker.Publisher, batch []broker.Envelope) *answers {
	a := s.collect(len(batch))
	p.Publish(ctx, batch, a.done)
	return a
}

func (a *answers) done(i int, r broker.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i < 0 || i >= len(a.results) {
		a.s.Errorf("done was called for index %d of %d", i, len(a.results))
		return
	}
	if a.count[i]++; a.count[i] > 1 {
		a.s.Errorf("index %d was answered %d times: %s, then %s", i, a.count[i], a.results[i].Outcome, r.Outcome)
		return
	}
	a.results[i] = r
	if a.open--; a.open == 0 {
		close(a.all)
	}
}

// wait returns the answers once all are there.
func (a *answers) wait() []broker.Result {
	a.s.Helper()
	select {
	case <-a.all:
	case <-time.After(a.s.Patience):
		a.mu.Lock()
		defer a.mu.Unlock()
		a.s.Fatalf("%d of %d messages have no answer after %s", a.open, len(a.results), a.s.Patience)
	}
	return a.results
}

// unanswered is how many answers are missing now.
func (a *answers) unanswered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

// publish publishes a batch and waits for its answers.
func (s *suite) publish(p broker.Publisher, batch []broker.Envelope) []broker.Result {
	s.Helper()
	return s.start(s.Context(), p, batch).wait()
}

// accept publishes a batch, all of which must be accepted.
func (s *suite) accept(p broker.Publisher, batch []broker.Envelope) []broker.Result {
	s.Helper()
	results := s.publish(p, batch)
	for i, r := range results {
		if r.Outcome != broker.Accepted {
			s.Fatalf("message %d was answered %s, want accepted: %s", i, r.Outcome, cause(r))
		}
	}
	return results
}

func cause(r broker.Result) string { return fmt.Sprintf("%s: %v", r.Code, r.Err) }

// read returns what arrived: n messages at least.
func (s *suite) read(n int) []Message {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Patience)
	defer cancel()
	ms, err := s.Harness.Read(ctx, n)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.Fatalf("read %d messages: %v", n, err)
	}
	if len(ms) < n {
		s.Fatalf("%d messages arrived, want %d at least", len(ms), n)
	}
	return ms
}

// readAll returns all that arrived, whatever it was, before a last message that it publishes itself.
func (s *suite) readAll(p broker.Publisher) []Message {
	s.Helper()
	last := s.message("")
	s.accept(p, []broker.Envelope{last})
	for n := 1; ; n++ {
		ms := s.read(n)
		for i, m := range ms {
			if m.Value("onward-id") == last.ID.String() {
				return ms[:i]
			}
		}
		n = len(ms)
	}
}

// ids returns the ids of messages in order.
func ids(ms []Message) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.Value("onward-id")
	}
	return out
}

// until asks again and again until a condition holds.
func (s *suite) until(what string, holds func() bool) {
	s.Helper()
	deadline := time.Now().Add(s.Patience)
	for tick := time.NewTicker(5 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			s.Fatalf("%s: not within %s", what, s.Patience)
		}
	}
}

// lacks says that a harness has no means for a case.
func (s *suite) lacks(what string) { s.Logf("not tested: %s", what) }
