package rabbitmq

import (
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

// What concerns a whole server: one node for all of it, because a start takes its time.
func TestSituationsOnANodeOfItsOwn(t *testing.T) {
	t.Parallel()
	securePort := brokertest.FreePort()
	authority, secure := withTLS(t, securePort)
	n := newNode(t, append(secure, "max_message_size = 262144")...)
	n.control("await_startup") // it takes connections a moment earlier than commands
	deniesAUserWithoutPermission(t, n)
	refusesALargeMessage(t, n)
	publishesWithTLS(t, n, securePort, authority)
	takesNothingDuringAnAlarm(t, n)
	losesNothingInARestart(t, n)
}

// The user may write to one exchange, and not to the other: what goes to the first is not disturbed for long.
func deniesAUserWithoutPermission(t *testing.T, n *node) {
	t.Helper()
	b := newBench(t, n.url())
	n.control("eval", `ok = rabbit_auth_backend_internal:add_user(<<"limited">>, <<"limited">>, <<"test">>),
		ok = rabbit_auth_backend_internal:set_permissions(<<"limited">>, <<"/">>, <<"^$">>, <<"^allowed$">>, <<"^$">>, <<"test">>).`)
	p := connected(t, b.publisherAt(strings.Replace(n.url(), "onward:onward", "limited:limited", 1), Config{}))
	for range 2 {
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], permissionDenied)
	}
}

func refusesALargeMessage(t *testing.T, n *node) {
	t.Helper()
	const limit = 262144
	b := newBench(t, n.url())
	p := connected(t, b.publisher(Config{Channels: 1}))
	large := func(size int) broker.Envelope {
		m := message(b.topic, "")
		m.Payload = make([]byte, size)
		return m
	}
	want(t, publish(t, t.Context(), p, large(limit+1))[0], aboveLimit)
	want(t, publish(t, t.Context(), p, large(limit+1))[0], aboveKnownLimit)
	want(t, publish(t, t.Context(), p, large(limit))[0], taken)
	if got := p.Capabilities().MaxBytes; got != limit {
		t.Errorf("MaxBytes is %d, want %d", got, limit)
	}

	fresh := connected(t, b.publisher(Config{Channels: 1})) // does not know the limit
	batch := append(messages(20, b.topic), large(limit+1))
	batch = append(batch, messages(20, b.topic)...)
	for i, r := range publish(t, t.Context(), fresh, batch...) { // a large one goes alone: nobody else has to go again
		if len(batch[i].Payload) > limit {
			want(t, r, aboveLimit)
		} else {
			want(t, r, taken)
		}
	}
}

// The disk has less than the limit; memory is the same alarm to a publisher.
func takesNothingDuringAnAlarm(t *testing.T, n *node) {
	t.Helper()
	b := newBench(t, n.url())
	p := connected(t, b.publisher(Config{AckTimeout: time.Second}))
	n.control("set_disk_free_limit", "900GB")
	first := message(b.topic, "")
	until(t, "the server says that it takes nothing", func() bool { // after the first message
		r := publish(t, t.Context(), p, first)[0]
		if r.Outcome != broker.Uncertain && r.Outcome != broker.Unavailable && r.Outcome != broker.Accepted {
			t.Fatalf("got %s: %v", r.Outcome, r.Err)
		}
		return r.Outcome == broker.Unavailable
	})
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], blocked)
	err := p.Check(t.Context())
	if outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(outbox.Hint(err), "alarm") {
		t.Errorf("Check during an alarm: %v (hint %q)", err, outbox.Hint(err))
	}
	n.control("set_disk_free_limit", "50MB")
	want(t, publish(t, t.Context(), connected(t, p), first)[0], taken)
}

// A server that closes the connections, and one that is killed.
func losesNothingInARestart(t *testing.T, n *node) {
	t.Helper()
	b := newBench(t, n.url())
	l := brokertest.StartLoad(t, connected(t, b.publisher(Config{})), b.topic, nodeStart)
	l.Await(100)
	n.control("close_all_connections", "for a test")
	l.Await(100)
	begun := time.Now()
	n.kill()
	n.start()
	l.Await(100)
	t.Logf("killed, started, and publishing again: %s", time.Since(begun).Round(time.Millisecond))
	l.Stop()
	b.look()
	b.consume()
	l.Arrived(b.read)
}
