package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
)

// Load publishes eight keys, one message of each at a time, each until it is published, as a relay does.
type Load struct {
	tb        testing.TB
	p         broker.Publisher
	topic     string
	patience  time.Duration
	over      atomic.Bool
	published atomic.Int64
	group     sync.WaitGroup
	sent      [8][]string // ids of each key
}

// StartLoad begins a load. patience is how long a message may take to be published, whatever happens to the broker. A message that is
// answered Retry or Rejected, and one that takes longer, is a fault of the test.
func StartLoad(tb testing.TB, p broker.Publisher, topic string, patience time.Duration) *Load {
	l := &Load{tb: tb, p: p, topic: topic, patience: patience}
	for k := range l.sent {
		l.group.Go(func() { l.key(k) })
	}
	return l
}

func (l *Load) key(k int) {
	for !l.over.Load() {
		m := NewMessage(l.topic, fmt.Sprint("key-", k))
		l.sent[k] = append(l.sent[k], m.ID.String())
		if !l.untilPublished(m) {
			return
		}
		l.published.Add(1)
	}
}

func (l *Load) untilPublished(m broker.Envelope) bool {
	for deadline := time.Now().Add(l.patience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		answer := make(chan broker.Result, 1)
		l.p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) { answer <- r })
		r := <-answer
		cancel()
		switch r.Outcome {
		case broker.Accepted, broker.Duplicate:
			return true
		case broker.Retry, broker.Rejected:
			l.tb.Errorf("a sound message was answered %s: %s %v", r.Outcome, r.Code, r.Err)
			return false
		default: // not now: it is asked again
		}
		<-time.After(5 * time.Millisecond) // a relay's breaker waits, too
	}
	l.tb.Errorf("not published within %s", l.patience)
	return false
}

// Await waits until n more messages of the load are published.
func (l *Load) Await(n int64) {
	l.tb.Helper()
	goal := l.published.Load() + n
	Until(l.tb, "the load goes on", func() bool { return l.tb.Failed() || l.published.Load() >= goal })
}

// Stop ends the load once what is on its way is published.
func (l *Load) Stop() {
	l.over.Store(true)
	l.group.Wait()
}

// Arrived wants of a load that was stopped that everything has arrived, first copies in order. read is a Harness.Read.
func (l *Load) Arrived(read func(ctx context.Context, n int) ([]Message, error)) {
	l.tb.Helper()
	last := map[string]bool{} // of each key: it was published, so it must come
	for _, ids := range l.sent {
		last[ids[len(ids)-1]] = true
	}
	ctx, cancel := context.WithTimeout(l.tb.Context(), Patience)
	defer cancel()
	var all []Message
	Until(l.tb, "the last message of each key arrives", func() bool {
		ms, _ := read(ctx, len(all)+1) // a server that is on its way back is asked again
		for _, m := range ms[min(len(all), len(ms)):] {
			delete(last, m.Value("onward-id"))
		}
		if len(ms) > len(all) {
			all = ms
		}
		return len(last) == 0
	})
	wantInOrder(l.tb, l.sent[:], all)
	l.tb.Logf("%d messages published, %d copies arrived", l.published.Load(), len(all))
}

// wantInOrder wants the first copies of what was sent on each key ("key-0" and on), all of them and in order.
func wantInOrder(tb testing.TB, sent [][]string, all []Message) {
	tb.Helper()
	arrived := map[string][]string{}
	for _, m := range all {
		key, id := m.Value("onward-key"), m.Value("onward-id")
		if !slices.Contains(arrived[key], id) {
			arrived[key] = append(arrived[key], id)
		}
	}
	for k, want := range sent {
		if got := arrived[fmt.Sprint("key-", k)]; !slices.Equal(got, want) {
			tb.Errorf("key-%d: %d of %d messages arrived, or out of order", k, len(got), len(want))
		}
	}
}
