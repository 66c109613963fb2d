package kafka

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return newBench(t, url, 1).harness(Config{}) })
}

// The suite on several partitions, compressed; its connections break and are silent.
func TestConformanceOverPartitionsWithAConnectionThatFails(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		b := newBench(t, url, 5, "message.timestamp.type=LogAppendTime").behindProxy()
		h := b.harness(Config{Compression: "zstd"})
		h.Stop = func(*testing.T) { b.proxy.stop() }
		h.Start = func(*testing.T) { b.proxy.start() }
		h.Freeze = func(*testing.T) func() {
			b.proxy.freeze()
			return b.proxy.thaw
		}
		return h
	})
}

// rawWire is that of a publisher whose sink says nothing of the format.
var rawWire, _ = broker.NewWire(broker.WireConfig{}, broker.StyleKafka)

func (b *bench) harness(c Config) brokertest.Harness {
	return brokertest.Harness{
		Topic:      b.topic,
		Unroutable: "no/topic",
		HeaderRoom: rawWire.Overhead() + recordRoom,
		Open: func(t *testing.T) broker.Publisher {
			p := b.publisher(c)
			until(t, "the publisher is connected", func() bool { return p.Check(t.Context()) == nil })
			return p
		},
		OpenWire: func(t *testing.T, w broker.WireConfig) broker.Publisher {
			wired := c
			wired.Wire = w
			p := b.publisher(wired)
			until(t, "the publisher is connected", func() bool { return p.Check(t.Context()) == nil })
			return p
		},
		Style: broker.StyleKafka,
		Read:  b.read,
		Less: func(x, y string) bool {
			px, ox, _ := strings.Cut(x, ":")
			py, oy, _ := strings.Cut(y, ":")
			nx, _ := strconv.ParseInt(ox, 10, 64)
			ny, _ := strconv.ParseInt(oy, 10, 64)
			return px == py && nx < ny
		},
		Poison: func(e *broker.Envelope) { e.Payload = make([]byte, 2*outbox.MaxPayload) },
		Slots: func(e broker.Envelope) []brokertest.Header {
			var slots []brokertest.Header
			if e.Key != "" {
				slots = append(slots, brokertest.Header{Name: slotKey, Value: e.Key})
			}
			if b.proxy == nil { // there the broker's own time is the record's
				slots = append(slots, brokertest.Header{Name: slotTime, Value: e.CreatedAt.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)})
			}
			return slots
		},
		Patience: longWait / 2,
	}
}
