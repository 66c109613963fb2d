package servicebus

import (
	"testing"

	"github.com/onwardhq/onward/broker/brokertest"
)

// A peer that is killed and comes back, twice, under load: nothing that was accepted is lost, and each key arrives in order.
func TestAPeerThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	x := newPeer(t)
	b := newBench(t, x)
	l := brokertest.StartLoad(t, connected(t, b.publisher(Config{})), b.topic, patience)
	for range 2 {
		l.Await(100)
		x.kill()
		x.start()
	}
	l.Await(100)
	l.Stop()
	l.Arrived(b.read)
}

// Connections that are cut at any moment, before and after the service has a message: the same.
func TestConnectionsCutUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	proxy, through := newProxy(t, x)
	b := newBench(t, x)
	l := brokertest.StartLoad(t, connected(t, b.publisherAt(through, Options{}, Config{})), b.topic, patience)
	for range 4 {
		l.Await(100)
		proxy.Stop()
		proxy.Start()
	}
	l.Await(100)
	l.Stop()
	l.Arrived(b.read)
}

// Links that the service ends under load, for whatever reason and with the message or without: the same.
func TestLinksEndedUnderLoadLoseNothing(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	b := newBench(t, x)
	l := brokertest.StartLoad(t, connected(t, b.publisher(Config{})), b.topic, patience)
	for _, s := range []settings{
		{"detach": "amqp:link:detach-forced", "times": 3},
		{"detach": "amqp:resource-limit-exceeded", "times": 3, "store": true},
		{"outcome": "com.microsoft:timeout", "times": 5, "store": true},
		{"end": "amqp:link:detach-forced"},
	} {
		l.Await(50)
		x.declare(b.topic, s)
	}
	l.Await(100)
	l.Stop()
	l.Arrived(b.read)
}
