package nats

import (
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		b := newBench(t, url, shortWindow(t))
		h := b.harness(func() broker.Publisher { return b.publisher(Config{}) })
		h.OpenWire = func(_ *testing.T, c broker.WireConfig) broker.Publisher { return b.publisher(Config{Wire: c}) }
		return h
	})
}

// The suite in compare mode, on streams whose own window is next to nothing.
func TestConformanceInCompareMode(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		b := newBench(t, url, noWindow)
		return compared(b.harness(func() broker.Publisher { return b.publisher(Config{Compare: true}) }))
	})
}

// compared adds the slots of compare mode; the suite looks at those of the first messages of their keys.
func compared(h brokertest.Harness) brokertest.Harness {
	plain := h.Slots
	h.Slots = func(e broker.Envelope) []brokertest.Header {
		return append(plain(e), brokertest.Header{Name: headerExpected, Value: "0"}, brokertest.Header{Name: headerHigh, Value: strconv.FormatInt(e.Seq, 10)})
	}
	return h
}

// noWindow makes the stream itself forget ids at once.
func noWindow(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond }

func TestConformanceInCompareModeWithAServerThatFails(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		return compared(failing(t, (*server).kill, Config{Compare: true}, noWindow))
	})
}

// TestConformanceWithAServerThatFails runs the suite on servers that it stops, kills and freezes.
func TestConformanceWithAServerThatFails(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*server){"stopped": (*server).stop, "killed": (*server).kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) brokertest.Harness { return failing(t, stop, Config{}, shortWindow(t)) })
		})
	}
}

// failing is a stream on a server of its own.
func failing(t *testing.T, stop func(*server), c Config, change func(*jetstream.StreamConfig)) brokertest.Harness {
	t.Helper()
	s := newServer(t, "")
	b := newBench(t, s.url(), func(c *jetstream.StreamConfig) {
		c.Storage = jetstream.FileStorage
		change(c)
	})
	h := b.harness(func() broker.Publisher { return b.dialed(Options{}, c) })
	h.Stop = func(*testing.T) { stop(s) }
	h.Start = func(*testing.T) { s.start() }
	h.Freeze = func(*testing.T) func() {
		s.freeze()
		return s.thaw
	}
	return h
}

// shortWindow gives the one case that waits for the end of the window a short one.
func shortWindow(t *testing.T) func(*jetstream.StreamConfig) {
	return func(c *jetstream.StreamConfig) {
		if strings.Contains(t.Name(), "remembers_ids") {
			c.Duplicates = 500 * time.Millisecond
		}
	}
}

func (b *bench) harness(open func() broker.Publisher) brokertest.Harness {
	return brokertest.Harness{
		Topic:      b.topic,
		Unroutable: "elsewhere." + b.topic,
		HeaderRoom: rawWire.Overhead(),
		Style:      broker.StyleNATS,
		Open: func(t *testing.T) broker.Publisher {
			p := open()
			until(t, "the publisher is connected and knows its stream", func() bool { return p.Check(t.Context()) == nil })
			return p
		},
		Read: b.read,
		Slots: func(e broker.Envelope) []brokertest.Header {
			return []brokertest.Header{{Name: natsgo.MsgIdHdr, Value: e.ID.String()}, {Name: natsgo.ExpectedStreamHdr, Value: b.stream}}
		},
		Patience: patience,
	}
}
