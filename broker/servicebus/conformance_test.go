package servicebus

import (
	"os"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		b := newBench(t, x.of(t))
		b.peer.declare(b.topic, settings{"max_size": 2 << 20}) // so that the largest payload of an outbox arrives
		return b.harness(b.connection)
	})
}

// The suite with all messages going to one queue, whose limit is known: on the peer, and where ONWARD_TEST_ASB_URL has a connection
// string with the right to manage, on the real service.
func TestConformanceOfOneQueue(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	for name, bench := range map[string]func(t *testing.T) *bench{
		"peer":    func(t *testing.T) *bench { return newBench(t, x.of(t)) },
		"service": func(t *testing.T) *bench { return newRealBench(t, os.Getenv("ONWARD_TEST_ASB_URL")) },
	} {
		if name == "service" && os.Getenv("ONWARD_TEST_ASB_URL") == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) brokertest.Harness { return bench(t).harnessOfOne() })
		})
	}
}

func (b *bench) harnessOfOne() brokertest.Harness {
	h := b.harness(b.connection)
	h.Unroutable = ""
	h.Open = func(t *testing.T) broker.Publisher { return connected(t, b.fixed()) }
	h.OpenWire = func(t *testing.T, c broker.WireConfig) broker.Publisher {
		c.Topic = b.topic
		return connected(t, b.publisher(Config{Wire: c}))
	}
	p := connected(b.tb, b.fixed())
	defer closeNow(p)
	p.mu.Lock()
	limit := int(p.limit) //nolint:gosec // of a queue
	p.mu.Unlock()
	h.HeaderRoom = limit - p.Capabilities().MaxBytes
	return h
}

// The suite with a connection that breaks and falls silent.
func TestConformanceWithAConnectionThatFails(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		of := x.of(t)
		proxy, through := newProxy(t, of)
		b := newBench(t, of)
		b.peer.declare(b.topic, settings{"max_size": 2 << 20})
		h := b.harness(through)
		h.Stop = func(*testing.T) { proxy.Stop() }
		h.Start = func(*testing.T) { proxy.Start() }
		h.Freeze = func(*testing.T) func() {
			proxy.Freeze()
			return proxy.Thaw
		}
		return h
	})
}

func (b *bench) harness(connection string) brokertest.Harness {
	return brokertest.Harness{
		Topic:      b.topic,
		Unroutable: b.topic + ".elsewhere",
		Open: func(t *testing.T) broker.Publisher {
			return connected(t, b.publisherAt(connection, Options{}, Config{}))
		},
		OpenWire: func(t *testing.T, c broker.WireConfig) broker.Publisher {
			return connected(t, b.publisherAt(connection, Options{}, Config{Wire: c}))
		},
		Style:    broker.StyleAMQP,
		Read:     b.read,
		Slots:    slots,
		Patience: patience,
	}
}

// slots is the service's part of the table of docs/names.md, section 1; the content type is another one in structured events, and
// in the golden file.
func slots(e broker.Envelope) []brokertest.Header {
	want := []brokertest.Header{{Name: "MessageID", Value: e.ID.String()}, {Name: "Subject", Value: e.Type}}
	if e.Key != "" {
		want = append(want, brokertest.Header{Name: "SessionID", Value: session(e.Key)})
	}
	if e.CorrelationID != "" {
		want = append(want, brokertest.Header{Name: "CorrelationID", Value: e.CorrelationID})
	}
	return want
}
