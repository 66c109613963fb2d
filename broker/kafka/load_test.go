package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
)

// load publishes on eight keys, up to window messages of each on their way, as a relay does with a pipeline: once one has failed
// it waits for the answers of all, and sends again from the first that is not published.
type load struct {
	b         *bench
	p         *Publisher
	window    int
	over      atomic.Bool
	published atomic.Int64
	failed    atomic.Int64
	group     sync.WaitGroup
	sent      [8][]string
}

func (b *bench) load(p *Publisher, window int) *load {
	l := &load{b: b, p: p, window: window}
	for k := range l.sent {
		l.group.Go(func() { l.key(k) })
	}
	return l
}

type answer struct {
	m broker.Envelope
	r broker.Result
}

func (l *load) key(k int) {
	var (
		waiting  []broker.Envelope // not published, in order
		flying   int
		failing  bool
		answers  = make(chan answer, l.window)
		deadline = time.Now().Add(4 * longWait)
	)
	for {
		for !failing && flying < l.window && (flying < len(waiting) || !l.over.Load()) {
			if flying == len(waiting) {
				m := message(l.b.topic, fmt.Sprint("key-", k))
				l.sent[k] = append(l.sent[k], m.ID.String())
				waiting = append(waiting, m)
			}
			l.send(waiting[flying], answers)
			flying++
		}
		if flying == 0 {
			return
		}
		a := <-answers
		flying--
		switch a.r.Outcome {
		case broker.Accepted, broker.Duplicate:
			if waiting[0].ID != a.m.ID && !failing {
				l.b.tb.Errorf("key-%d: %s was accepted before one that was sent before it", k, a.m.ID)
			}
			waiting = slices.DeleteFunc(waiting, func(m broker.Envelope) bool { return m.ID == a.m.ID })
			l.published.Add(1)
		case broker.Rejected:
			l.b.tb.Errorf("a sound message was answered %s: %s %v", a.r.Outcome, a.r.Code, a.r.Err)
			return
		default:
			failing = true
			l.failed.Add(1)
		}
		if failing && flying == 0 {
			failing = false
			<-time.After(5 * time.Millisecond) // a relay's breaker waits, too
		}
		if time.Now().After(deadline) {
			l.b.tb.Errorf("key-%d: not published: %s %v", k, a.r.Outcome, a.r.Err)
			return
		}
	}
}

func (l *load) send(m broker.Envelope, answers chan<- answer) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	l.p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) {
		cancel()
		answers <- answer{m, r}
	})
}

// await waits until n more messages of the load are published.
func (l *load) await(n int64) {
	l.b.tb.Helper()
	goal := l.published.Load() + n
	until(l.b.tb, "the load goes on", func() bool { return l.b.tb.Failed() || l.published.Load() >= goal })
}

// end stops the load and checks what arrived: everything, first copies in order. It returns how many came twice.
func (l *load) end() int {
	l.b.tb.Helper()
	l.over.Store(true)
	l.group.Wait()
	parts, err := l.b.records(l.b.context(), int(l.published.Load()))
	if err != nil {
		l.b.tb.Fatal(err)
	}
	arrivals, seen, twice := map[string][]string{}, map[string]bool{}, 0
	for partition := range parts { // a key that changed its partition: by the order of arrival of each
		for _, r := range parts[partition] {
			m := arrived(r)
			key, id := m.Value("onward-key"), m.Value("onward-id")
			if seen[id] {
				twice++
				continue
			}
			seen[id] = true
			arrivals[key] = append(arrivals[key], id)
		}
	}
	for k, want := range l.sent {
		if got := arrivals[fmt.Sprint("key-", k)]; !slices.Equal(got, want) {
			l.b.tb.Errorf("key-%d: %d of %d messages arrived, or out of order", k, len(got), len(want))
		}
	}
	return twice
}
