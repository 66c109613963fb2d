package redis

import (
	"testing"
)

// What was never written is Unavailable and not Uncertain: the connection was closed between the queue and the socket.
func TestWhatWasNotWrittenIsNotUncertain(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	p := connected(t, b.publisher(Config{}))
	l, err := p.dial.open(t.Context())
	b.must(err)
	l.free()
	p.mu.Lock()
	p.link = l // as the writer has it in its hand
	p.mu.Unlock()
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notConnected)
	if n := b.count(); n != 0 {
		t.Errorf("the stream has %d entries, want none", n)
	}
}

// The name of a server may lead to another one after a failover: its connection is made anew, without a message that asks for it.
func TestAServerThatBecameAReplicaIsLeft(t *testing.T) {
	t.Parallel()
	b := newServer(t).bench()
	p := connected(t, b.publisher(Config{}))
	now := func() *link {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.link
	}
	before := now()
	b.must(b.client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], readOnly)
	until(t, "the connection is another one", func() bool { l := now(); return l != nil && l != before })
}
