package nats

import (
	"strings"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

func TestEachKeyHasASubjectOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	keys := []string{"a", "A", "order-4711", "a.b", "a=2Eb", "a b", "=", "==", "a*", ">", "é", "e\u0301", "日本", "=20", " ", "0", strings.Repeat("ü", 127), "\xff", "_", "-", "%20"}
	id := outbox.NewID()
	keys = append(keys, id.String(), "="+id.String(), "=="+id.String())
	for _, key := range keys {
		e := broker.Envelope{Record: &outbox.Record{Message: outbox.Message{Topic: "t", Key: key, ID: id}}}
		s, alone := subjectOf(e.Topic, &e)
		if before, ok := seen[s]; ok || alone {
			t.Errorf("keys %q and %q have the subject %q (alone: %v)", before, key, s, alone)
		}
		seen[s] = key
		if err := checkSubject(s); err != nil || strings.Count(s, ".") != 1 {
			t.Errorf("key %q: subject %q: %v", key, s, err)
		}
	}
	for key, want := range map[string]string{"order-4711": "t.order-4711", "a.b": "t.a=2Eb", "é": "t.=C3=A9", "": "t.==" + id.String()} {
		e := broker.Envelope{Record: &outbox.Record{Message: outbox.Message{Topic: "t", Key: key, ID: id}}}
		if got, alone := subjectOf(e.Topic, &e); got != want || alone != (key == "") || seen[got] != key {
			t.Errorf("key %q: subject %q, want %q", key, got, want)
		}
	}
}

// The longest topic and key that an outbox takes arrive.
func TestTheLongestSubjectArrives(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	topic := b.topic + "." + strings.Repeat("t", outbox.MaxTopic-len(b.topic)-1)
	m := message(topic, strings.Repeat("ü", 127)+".")
	p := b.open()
	b.send(p, taken, m)
	b.forgotten()
	b.send(b.open(), found, m)
	b.wantStored(m)
}
