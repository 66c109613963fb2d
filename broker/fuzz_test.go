package broker

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Of a message that the rules take, no header comes twice, whatever its own are called; Onward's own say what they say of the
// message, and the message's own arrive beside them, all of them. What says nothing is left out.
func FuzzHeaders(f *testing.F) {
	f.Add("orders", "k", "T", "text/plain", "", "traceparent", "00-1", int64(7))
	f.Add("t", "", "T", "", "c", "onward-id", "x", int64(0))
	f.Add("t", "k", "T", "", "c", "Content-Type", "x", int64(-1))
	f.Add("t", "k", "T", " ", "c", "X", "", int64(1)<<62)
	f.Fuzz(func(t *testing.T, topic, key, kind, contentType, correlation, name, value string, n int64) {
		m, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{Topic: topic, Key: key, Type: kind, ContentType: contentType, CorrelationID: correlation, Headers: map[string]string{name: value, "x-other": "1"}})
		if err != nil {
			return
		}
		at := time.UnixMicro(n % (1 << 50)).In(time.FixedZone("", 3600))
		e := Envelope{Record: &outbox.Record{Message: m, Seq: n, KeySeq: n, CreatedAt: at}, Epoch: n}
		got, lower := map[string]string{}, map[string]bool{}
		for name, value := range e.Headers() {
			if lower[strings.ToLower(name)] && name != "x-other" && !strings.EqualFold(name, "x-other") {
				t.Errorf("header %q comes twice", name)
			}
			lower[strings.ToLower(name)], got[name] = true, value
		}
		for name, value := range m.Headers {
			if got[name] != value {
				t.Errorf("header %q is %q, want %q", name, got[name], value)
			}
			delete(got, name)
		}
		for header, text := range map[string]string{
			"onward-id": m.ID.String(), "onward-topic": topic, "onward-type": kind, "onward-key": key, "content-type": m.ContentType, "onward-correlation-id": correlation,
		} {
			if there, said := got[header]; there != text || said != (text != "") {
				t.Errorf("%s is %q, want %q", header, there, text)
			}
			delete(got, header)
		}
		if sent, err := time.Parse(time.RFC3339Nano, got["onward-time"]); err != nil || !sent.Equal(at) {
			t.Errorf("onward-time %q is %v, want %v", got["onward-time"], sent, at)
		}
		maps.DeleteFunc(got, func(name, _ string) bool {
			return name == "onward-time" || name == "onward-seq" || name == "onward-epoch" || name == "onward-key-seq" && n != 0
		})
		if len(got) > 0 {
			t.Errorf("nobody asked for %q", got)
		}
	})
}
