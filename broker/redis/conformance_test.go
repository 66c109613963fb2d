package redis

import (
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return newBench(t, url).harness(url) })
}

// The suite with a connection that breaks and falls silent.
func TestConformanceWithAConnectionThatFails(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		x, through := newProxy(t, url)
		h := newBench(t, url).harness(through)
		h.Stop = func(*testing.T) { x.Stop() }
		h.Start = func(*testing.T) { x.Start() }
		h.Freeze = func(*testing.T) func() {
			x.Freeze()
			return x.Thaw
		}
		return h
	})
}

func (b *bench) harness(url string) brokertest.Harness {
	b.makeOther()
	return brokertest.Harness{
		Topic:      b.topic,
		Unroutable: b.other(),
		Open: func(t *testing.T) broker.Publisher {
			return connected(t, b.publisherAt(url, Config{}))
		},
		OpenWire: func(t *testing.T, c broker.WireConfig) broker.Publisher {
			return connected(t, b.publisherAt(url, Config{Wire: c}))
		},
		Style:    broker.StyleRedis,
		Read:     b.read,
		Less:     positionLess,
		Patience: patience,
	}
}
