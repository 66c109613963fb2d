package membroker_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
)

// What is kept is what was handed over at that moment, whatever the caller does with its memory afterwards; a second copy is
// the same message.
func FuzzMessages(f *testing.F) {
	f.Add("orders", "k", "T", "text/plain", "name", "value", []byte("payload"))
	f.Add("", "", "", "", "", "", []byte(nil))
	f.Add("t", "\x00\xff", "\r\n", "a", "onward-id", "b", bytes.Repeat([]byte{0}, 100))
	f.Fuzz(func(t *testing.T, topic, key, kind, contentType, name, value string, payload []byte) {
		b := membroker.New(membroker.Config{})
		e := broker.Envelope{Record: &outbox.Record{
			Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Type: kind, ContentType: contentType, Payload: bytes.Clone(payload), Headers: map[string]string{name: value}},
			Seq:     1,
		}}
		var want []membroker.Header
		for name, value := range e.Headers() {
			want = append(want, membroker.Header{Name: name, Value: value})
		}
		for range 2 {
			var answer broker.Result
			b.Publisher().Publish(t.Context(), []broker.Envelope{e}, func(_ int, r broker.Result) { answer = r })
			if answer.Outcome != broker.Accepted {
				t.Fatalf("%+v", answer)
			}
		}
		for i := range e.Payload {
			e.Payload[i]++
		}
		maps.DeleteFunc(e.Record.Headers, func(string, string) bool { return true })
		got := b.Messages(topic)
		if len(got) != 2 {
			t.Fatalf("%d copies, want 2", len(got))
		}
		for _, m := range got {
			if m.ID != e.ID || m.Topic != topic || m.Key != key || !bytes.Equal(m.Payload, payload) || !slices.Equal(m.Headers, want) {
				t.Errorf("got %+v\nwant %q of topic %q, key %q, headers %q", m, payload, topic, key, want)
			}
		}
	})
}
