package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

// owner is a publisher with transactions that claims what it publishes, as a relay does that owns everything.
type owner struct {
	*Publisher
	mu   sync.Mutex
	last *atomic.Pointer[owner] // who claimed last
}

// partitions are those of the suite's messages.
var partitions = []int{0, 13}

func newOwner(t *testing.T, p broker.Publisher, last *atomic.Pointer[owner]) *owner {
	t.Helper()
	o := &owner{Publisher: p.(*Publisher), last: last}
	last.Store(o)
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	if err := o.Claim(ctx, partitions); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *owner) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last.Swap(o) != o { // the suite has several at once, which take partitions from each other
		claiming, cancel := context.WithTimeout(ctx, longWait)
		defer cancel()
		_ = o.Claim(claiming, partitions) // what is published tells
	}
	o.Publisher.Publish(ctx, batch, done)
}

// transactions are those of a test of its own, with a progress topic of its own.
func (b *bench) transactions() Transactions {
	b.tb.Helper()
	topic := b.topic + ".progress"
	b.makeTopic(topic, 1, "cleanup.policy=compact")
	b.txn = true
	return Transactions{ID: b.topic, Topic: topic, Timeout: 5 * time.Second}
}

func TestConformanceOfTransactions(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		b := newBench(t, url, 3, "message.timestamp.type=LogAppendTime").behindProxy()
		h := b.harness(Config{Transactions: b.transactions()})
		open, wired, last := h.Open, h.OpenWire, new(atomic.Pointer[owner])
		h.Open = func(t *testing.T) broker.Publisher { return newOwner(t, open(t), last) }
		h.OpenWire = func(t *testing.T, w broker.WireConfig) broker.Publisher { return newOwner(t, wired(t, w), last) }
		h.Stop = func(*testing.T) { b.proxy.stop() }
		h.Start = func(*testing.T) { b.proxy.start() }
		h.Freeze = func(*testing.T) func() {
			b.proxy.freeze()
			return b.proxy.thaw
		}
		return h
	})
}
