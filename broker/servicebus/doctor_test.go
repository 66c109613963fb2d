package servicebus

import (
	"fmt"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// The doctor's verdict changes with what the service says of a queue; nothing is sent.
func TestTheDoctorOpensWhatMessagesGoTo(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	missing := b.topic + ".missing"
	p := connected(t, b.publisher(Config{}))
	question := doctor.Question{MaxPayload: 1 << 20}
	for _, topic := range []string{b.topic, missing, b.topic} {
		question.Samples = append(question.Samples, &outbox.Record{Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Type: "T"}})
	}
	examine := func(p *Publisher) map[string]doctor.Severity {
		t.Helper()
		d, err := p.Examine(t.Context(), question)
		b.must(err)
		found := map[string]doctor.Severity{}
		for _, f := range d.Findings {
			if found[f.Check+" "+f.Where] = f.Severity; f.Severity != doctor.OK && (f.Means == "" || f.Fix == "") || f.Read == "" {
				t.Errorf("not complete: %+v", f)
			}
		}
		if len(found) != len(d.Findings) || d.Server == "" || d.Worth == "" {
			t.Errorf("twice, or not complete: %+v", d)
		}
		return found
	}
	want := map[string]doctor.Severity{
		"servicebus-tls ": doctor.Warning, "servicebus-settings ": doctor.Unknown,
		"servicebus-entity " + b.topic: doctor.OK, "servicebus-max-message " + b.topic: doctor.Warning, "servicebus-entity " + missing: doctor.Unsafe,
	}
	if got := examine(p); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	b.peer.declare(missing, settings{"max_size": 2 << 20})
	want["servicebus-entity "+missing], want["servicebus-max-message "+missing] = doctor.OK, doctor.OK
	if got := examine(p); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with the queue: got %v, want %v", got, want)
	}
	one := connected(t, b.publisher(Config{Wire: broker.WireConfig{Topic: missing}}))
	if got := examine(one); got["servicebus-entity "+missing] != doctor.OK || len(got) != 4 {
		t.Errorf("of one queue: %v", got)
	}
	if n := b.count(p); n != 0 {
		t.Errorf("%d messages arrived", n)
	}
	nobody := b.publisherAt((&peer{host: "127.0.0.1:1"}).connection(fullKey), Options{}, Config{})
	if _, err := nobody.Examine(t.Context(), question); outbox.CodeOf(err) != broker.CodeUnavailable || outbox.Hint(err) == "" {
		t.Errorf("nobody there: %v (hint %q)", err, outbox.Hint(err))
	}
}
