package brokertest

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Patience is how long the helpers here wait for what must come.
const Patience = 30 * time.Second

// Until polls a condition until it holds; after Patience the test has failed.
func Until(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	UntilWithin(tb, Patience, what, holds)
}

// UntilWithin is Until with a patience of its own.
func UntilWithin(tb testing.TB, patience time.Duration, what string, holds func() bool) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; !holds(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s", what, patience)
		}
	}
}

var lastSeq atomic.Int64

// NewMessage makes a message for a topic, with an id and a number of its own.
func NewMessage(topic, key string) broker.Envelope {
	seq := lastSeq.Add(1)
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Type: "Tested", ContentType: "text/plain", Payload: []byte("payload " + strconv.FormatInt(seq, 10))},
			Seq:     seq, CreatedAt: time.Now(),
		},
		Epoch: 1, Lineage: "1", Attempt: 1,
	}
}

// NewMessages makes n messages without keys.
func NewMessages(n int, topic string) []broker.Envelope {
	batch := make([]broker.Envelope, n)
	for i := range batch {
		batch[i] = NewMessage(topic, "")
	}
	return batch
}

// Publish returns the answers to a batch, all of which must come within Patience.
func Publish(tb testing.TB, ctx context.Context, p broker.Publisher, batch ...broker.Envelope) []broker.Result { //nolint:revive // tb first, as testing does
	tb.Helper()
	return Start(tb, ctx, p, batch...)()
}

// Start publishes a batch; the returned function waits for its answers.
func Start(tb testing.TB, ctx context.Context, p broker.Publisher, batch ...broker.Envelope) (wait func() []broker.Result) { //nolint:revive // tb first, as testing does
	tb.Helper()
	var mu sync.Mutex
	results, answered := make([]broker.Result, len(batch)), 0
	all := make(chan struct{})
	if len(batch) == 0 {
		close(all)
	}
	p.Publish(ctx, batch, func(i int, r broker.Result) {
		mu.Lock()
		defer mu.Unlock()
		if results[i].Outcome != 0 {
			tb.Errorf("message %d was answered twice: %v, %v", i, results[i], r)
			return
		}
		results[i] = r
		if answered++; answered == len(batch) {
			close(all)
		}
	})
	return func() []broker.Result {
		tb.Helper()
		select {
		case <-all:
		case <-time.After(Patience):
			tb.Fatalf("answers are missing after %s", Patience)
		}
		return results
	}
}
