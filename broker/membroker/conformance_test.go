package membroker_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/membroker"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	poisoned := membroker.When(func(e broker.Envelope) bool { return e.Type == "poison" }, membroker.Fault{Outcome: broker.Retry})
	for name, c := range map[string]membroker.Config{
		"plain":                 {Faults: []membroker.Rule{poisoned}},
		"claims all":            {Pipeline: true, Positions: true, Dedup: time.Hour, MaxBytes: 1000, Faults: []membroker.Rule{poisoned}},
		"claims all, latency":   {Pipeline: true, Positions: true, Dedup: time.Hour, MaxBytes: 1000, Latency: time.Millisecond, Faults: []membroker.Rule{poisoned}},
		"short window, latency": {Dedup: 50 * time.Millisecond, Latency: time.Millisecond, Faults: []membroker.Rule{poisoned}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(*testing.T) brokertest.Harness { return harness(c) })
		})
	}
}

func harness(c membroker.Config) brokertest.Harness {
	b := membroker.New(c)
	return brokertest.Harness{
		Topic:  "t",
		Open:   func(*testing.T) broker.Publisher { return b.Publisher() },
		Read:   func(ctx context.Context, n int) ([]brokertest.Message, error) { return read(ctx, b, n) },
		Poison: func(e *broker.Envelope) { e.Type = "poison" },
		Stop:   func(*testing.T) { b.SetUnavailable(true) },
		Start:  func(*testing.T) { b.SetUnavailable(false) },
	}
}

func read(ctx context.Context, b *membroker.Broker, n int) ([]brokertest.Message, error) {
	if n > 0 {
		if _, err := b.Read(ctx, "t", n-1); err != nil {
			return nil, err
		}
	}
	var out []brokertest.Message
	for _, m := range b.Messages("t") {
		r := brokertest.Message{Payload: m.Payload, Position: strconv.FormatInt(m.Position, 10)}
		for _, h := range m.Headers {
			r.Headers = append(r.Headers, brokertest.Header(h))
		}
		out = append(out, r)
	}
	return out, nil
}
