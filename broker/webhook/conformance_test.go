package webhook

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func harness(t *testing.T, secure bool) brokertest.Harness {
	t.Helper()
	e := newEndpoint(t, secure, nil)
	return brokertest.Harness{
		Topic: "orders", Read: e.read, AnyCase: true, Style: broker.StyleHTTP, Patience: patience,
		Open:     func(*testing.T) broker.Publisher { return e.publisher(Config{Timeout: 3 * time.Second}) },
		OpenWire: func(_ *testing.T, c broker.WireConfig) broker.Publisher { return e.publisher(Config{Wire: c}) },
		Slots: func(e broker.Envelope) []brokertest.Header {
			return []brokertest.Header{{Name: "webhook-id", Value: e.ID.String()}}
		},
		Stop:   func(*testing.T) { e.stop() },
		Start:  func(*testing.T) { e.start() },
		Freeze: func(*testing.T) func() { return e.freeze() },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t, false) })
}

// With TLS the two agree on HTTP/2.
func TestConformanceWithTLS(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t, true) })
}
