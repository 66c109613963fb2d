package servicebus

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
	ctx, cancel := context.WithTimeout(l.b.tb.Context(), patience)
	defer cancel()
	seen := 0
	for len(last) > 0 {
		all, err := l.b.receive(ctx, seen+1)
		for _, m := range all[seen:] {
			key, _ := m.ApplicationProperties["onward-key"].(string)
			if !slices.Contains(arrived[key], m.MessageID) {
				arrived[key] = append(arrived[key], m.MessageID)
			}
			delete(last, m.MessageID)
		}
		if seen = len(all); ctx.Err() != nil {
			l.b.tb.Fatalf("the last messages of %d keys did not arrive: %v", len(last), err)
		}
	}
	for k, want := range l.sent {
		if got := arrived[fmt.Sprint("key-", k)]; !slices.Equal(got, want) {
			l.b.tb.Errorf("key-%d: %d of %d messages arrived, or out of order", k, len(got), len(want))
		}
	}
	l.b.tb.Logf("%d messages published, %d copies arrived", l.published.Load(), seen)
}

// A peer that is killed and comes back, twice, under load: nothing that was accepted is lost, and each key arrives in order.
func TestAPeerThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	x := newPeer(t)
	b := newBench(t, x)
	l := b.load(connected(t, b.publisher(Config{})))
	for range 2 {
		l.await(100)
		x.kill()
		x.start()
	}
	l.await(100)
	l.end()
}

// Connections that are cut at any moment, before and after the service has a message: the same.
func TestConnectionsCutUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	proxy, through := newProxy(t, x)
	b := newBench(t, x)
	l := b.load(connected(t, b.publisherAt(through, Options{}, Config{})))
	for range 4 {
		l.await(100)
		proxy.Stop()
		proxy.Start()
	}
	l.await(100)
	l.end()
}

// Links that the service ends under load, for whatever reason and with the message or without: the same.
func TestLinksEndedUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	b := newBench(t, x)
	l := b.load(connected(t, b.publisher(Config{})))
	for _, s := range []settings{
		{"detach": "amqp:link:detach-forced", "times": 3},
		{"detach": "amqp:resource-limit-exceeded", "times": 3, "store": true},
		{"outcome": "com.microsoft:timeout", "times": 5, "store": true},
		{"end": "amqp:link:detach-forced"},
	} {
		l.await(50)
		x.declare(b.topic, s)
	}
	l.await(100)
	l.end()
}
