package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
)

// load publishes eight keys, one message of each at a time, each until it is published, as a relay does.
type load struct {
	b         *bench
	p         *Publisher
	over      atomic.Bool
	published atomic.Int64
	group     sync.WaitGroup
	sent      [8][]string
}

func (b *bench) load(p *Publisher) *load {
	l := &load{b: b, p: p}
	for k := range l.sent {
		l.group.Go(func() { l.key(k) })
	}
	return l
}

func (l *load) key(k int) {
	for !l.over.Load() {
		m := message(l.b.topic, fmt.Sprint("key-", k))
		l.sent[k] = append(l.sent[k], m.ID.String())
		if !l.untilPublished(m) {
			return
		}
		l.published.Add(1)
	}
}

func (l *load) untilPublished(m broker.Envelope) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		answer := make(chan broker.Result, 1)
		l.p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) { answer <- r })
		r := <-answer
		cancel()
		switch r.Outcome {
		case broker.Accepted, broker.Duplicate:
			return true
		case broker.Retry, broker.Rejected:
			l.b.tb.Errorf("a sound message was answered %s: %s %v", r.Outcome, r.Code, r.Err)
			return false
		default: // not now: it is asked again
		}
		<-time.After(5 * time.Millisecond) // a relay's breaker waits, too
	}
	l.b.tb.Errorf("not published within %s", patience)
	return false
}

// await waits until n more messages of the load are published.
func (l *load) await(n int64) {
	l.b.tb.Helper()
	goal := l.published.Load() + n
	until(l.b.tb, "the load goes on", func() bool { return l.b.tb.Failed() || l.published.Load() >= goal })
}

// end stops the load and checks what arrived: everything, first copies in order.
func (l *load) end() {
	l.b.tb.Helper()
	l.over.Store(true)
	l.group.Wait()
	last := map[string]bool{} // of each key: it was published, so it must come
	for _, ids := range l.sent {
		last[ids[len(ids)-1]] = true
	}
	arrived := map[string][]string{}
	seen := 0
	until(l.b.tb, "the last message of each key arrives", func() bool {
		all, _ := l.b.read(context.Background(), 0)
		for _, m := range all[seen:] {
			key, id := m.Value("onward-key"), m.Value("onward-id")
			if !slices.Contains(arrived[key], id) {
				arrived[key] = append(arrived[key], id)
			}
			delete(last, id)
		}
		seen = len(all)
		return len(last) == 0
	})
	for k, want := range l.sent {
		if got := arrived[fmt.Sprint("key-", k)]; !slices.Equal(got, want) {
			l.b.tb.Errorf("key-%d: %d of %d messages arrived, or out of order", k, len(got), len(want))
		}
	}
	l.b.tb.Logf("%d messages published, %d copies arrived", l.published.Load(), seen)
}
