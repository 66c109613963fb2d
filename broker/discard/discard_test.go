package discard_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/discard"
	"github.com/onwardhq/onward/outbox"
)

// witness remembers what publishers took: nothing else could be asked.
type witness struct {
	mu    sync.Mutex
	taken []brokertest.Message
}

type watched struct {
	*discard.Publisher
	witness *witness
}

func (w watched) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	w.Publisher.Publish(ctx, batch, func(i int, r broker.Result) {
		if r.Outcome == broker.Accepted {
			m := brokertest.Message{Payload: bytes.Clone(batch[i].Payload)}
			for name, value := range batch[i].Headers() {
				m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: value})
			}
			w.witness.mu.Lock()
			w.witness.taken = append(w.witness.taken, m)
			w.witness.mu.Unlock()
		}
		done(i, r)
	})
}

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(*testing.T) brokertest.Harness {
		w := &witness{}
		return brokertest.Harness{
			Topic: "t",
			Open:  func(*testing.T) broker.Publisher { return watched{discard.NewPublisher(), w} },
			Read: func(context.Context, int) ([]brokertest.Message, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.Clone(w.taken), nil
			},
		}
	})
}

func TestWhatWasForgottenIsCounted(t *testing.T) {
	t.Parallel()
	var p discard.Publisher
	batch := []broker.Envelope{{Record: &outbox.Record{Message: outbox.Message{Payload: []byte("abc")}}}, {Record: &outbox.Record{}}}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() { p.Publish(t.Context(), batch, func(int, broker.Result) {}) })
	}
	group.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.Publish(ended, batch, func(int, broker.Result) {})
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	p.Publish(t.Context(), batch, func(int, broker.Result) {})
	if messages, size := p.Taken(); messages != 20 || size != 30 {
		t.Errorf("%d messages, %d bytes, want 20 and 30", messages, size)
	}
	if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnavailable {
		t.Errorf("check after Close: %v", err)
	}
}

func TestTheAddressHasNothingBehindIt(t *testing.T) {
	t.Parallel()
	if err := discard.CheckURL("discard:"); err != nil {
		t.Error(err)
	}
	for _, address := range []string{"", "discard", "discard:/tmp", "discard://host", "jsonl:"} {
		if err := discard.CheckURL(address); !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
