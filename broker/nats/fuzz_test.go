package nats

import (
	"math"
	"net/url"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// In compare mode a key has one subject, from which it can be read again: no two keys share one. It is a subject to publish to
// wherever the topic is one, and the key is its last word.
func FuzzSubjectOf(f *testing.F) {
	for _, key := range []string{"", "order-4711", "a.b", "a=2Eb", "=", "==", "*", ">", "é", "\x00\xff", " ", "==0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e"} {
		f.Add("orders.eu", key)
	}
	f.Fuzz(func(t *testing.T, topic, key string) {
		e := broker.Envelope{Record: &outbox.Record{Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key}}}
		subject, alone := subjectOf(e.Topic, &e)
		word, ok := strings.CutPrefix(subject, topic+".")
		if !ok || strings.Contains(word, ".") || alone != (key == "") {
			t.Fatalf("topic %q, key %q: subject %q, alone: %v", topic, key, subject, alone)
		}
		if legal := checkSubject(topic) == nil; legal != (checkSubject(subject) == nil) {
			t.Errorf("topic %q, key %q: subject %q: %v", topic, key, subject, checkSubject(subject))
		}
		if key == "" {
			if word != "=="+e.ID.String() {
				t.Errorf("without a key the word is %q", word)
			}
			return
		}
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=") != "" || strings.Contains(word, "==") {
			t.Errorf("key %q: the word %q has other characters", key, word)
		}
		if back, err := url.PathUnescape(strings.ReplaceAll(word, "=", "%")); err != nil || back != key {
			t.Errorf("key %q: the word %q is the key %q, %v", key, word, back, err)
		}
	})
}

// What the rules take goes out; a consumer reads the headers of the raw format, and compare mode what it has to know, whatever
// the message's own headers say.
func FuzzMessageHeaders(f *testing.F) {
	f.Add("orders", "k", "T", "text/plain", "c", "traceparent", "00-1", int64(1), uint64(2))
	f.Add("t", "", "ünï", "", "", "X", "\t a: b \t", int64(-1), uint64(0))
	f.Add("t", " ", "T", " ", " ", "~", "", int64(math.MaxInt64), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, topic, key, kind, contentType, correlation, name, value string, seq int64, behind uint64) {
		m, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{Topic: topic, Key: key, Type: kind, ContentType: contentType, CorrelationID: correlation, Headers: map[string]string{name: value}})
		if err != nil {
			return
		}
		e := broker.Envelope{Record: &outbox.Record{Message: m, Seq: seq}, Epoch: 1, Lineage: "1"}
		w := &writer{publisher: &Publisher{cfg: Config{Stream: "S"}, wire: rawWire}, header: map[string][]string{}}
		if r := w.buildHeader(&e, &flight{lane: &lane{}, behind: behind, high: max(seq, 7)}); r != nil {
			t.Fatalf("%+v is refused: %+v", m, r)
		}
		raw := headerBytes(t, w.header)
		got, err := natsgo.DecodeHeadersMsg(raw)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		for name, value := range e.Headers() {
			if all := got[name]; len(all) != 1 || all[0] != strings.Trim(value, " \t") {
				t.Errorf("%s: %q arrived as %q", name, value, all)
			}
		}
		if got.Get(natsgo.MsgIdHdr) != m.ID.String() || got.Get(natsgo.ExpectedStreamHdr) != "S" {
			t.Errorf("the broker's own slots are %q", got)
		}
		stored, err := parseStored("s", 5, raw)
		if err != nil || stored.id != m.ID || !stored.compared || stored.behind != behind || stored.high != max(seq, 7) {
			t.Errorf("read back as %+v, %v; want id %s behind %d, high %d", stored, err, m.ID, behind, max(seq, 7))
		}
	})
}
