package nats

import (
	"strings"
	"testing"

	"github.com/onwardhq/onward/broker"
)

var (
	goodSubjects = []string{"a", "orders.paid", "a*b.c", "a>.b", "日本.ünï", "$KV.bucket.key", "a$b", "_inbox", "x._INBOX.y", "-", strings.Repeat("a.", 127) + "a"}
	badSubjects  = []string{"", ".", "a.", ".a", "a..b", "*", ">", "a.*", "a.>", "a.*.b", "a b", "a\tb", "a\nb", "a\r\nb", "a\x00b", "a\x7f", "$JS.API.INFO", "$SYS", "$G.x", "_INBOX.a", "_R_.a"}
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	for _, s := range goodSubjects {
		if err := checkSubject(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range badSubjects {
		if checkSubject(s) == nil {
			t.Errorf("%q was taken for a subject", s)
		}
	}
}

// What passes arrives at the stream under the same name, which the server alone can say.
func TestAcceptedSubjectsArriveUnderTheirNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	prefix := strings.TrimSuffix(b.topic, "orders")
	for i, s := range goodSubjects {
		topic := prefix + s
		if len(topic) > 255 {
			topic = topic[:255]
		}
		want(t, publish(t, t.Context(), p, message(topic, ""))[0], taken)
		m, err := b.js.Stream(b.context(), b.stream)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.GetMsg(b.context(), uint64(i)+1)
		if err != nil || got.Subject != topic {
			t.Errorf("%q arrived as %v (%v)", topic, got, err)
		}
	}
}

func FuzzSubject(f *testing.F) {
	for _, s := range append(goodSubjects, badSubjects...) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		if checkSubject(topic) != nil {
			return
		}
		// a subject goes out between two blanks of one line
		if topic == "" || strings.ContainsAny(topic, " \t\r\n\x00") {
			t.Errorf("%q would break the protocol", topic)
		}
		for _, word := range strings.Split(topic, ".") {
			if word == "" || word == "*" || word == ">" {
				t.Errorf("%q is no name of one subject", topic)
			}
		}
		if !covers([]string{">"}, topic) || !covers([]string{"no", topic}, topic) || covers([]string{topic + ".x"}, topic) {
			t.Errorf("%q: covers disagrees", topic)
		}
	})
}

// A header that is sent arrives as it is; nats.go's reader is the consumer. Blanks at the ends of a value are not kept.
func FuzzHeader(f *testing.F) {
	for _, h := range [][2]string{{"traceparent", "00-01"}, {"x", ""}, {"x", " a b\t"}, {"x", "ü日本"}, {"x", "a\r\nb: c"}, {"a b", "1"}, {"a:b", "1"}, {"", "1"}, {"ü", "1"}, {"x", "\x00\x01\x7f"}} {
		f.Add(h[0], h[1])
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		if !validHeader(name, value) {
			return
		}
		w := &writer{publisher: &Publisher{cfg: Config{Stream: "S"}, wire: rawWire}, header: map[string][]string{}}
		m := message("t", "")
		m.Record.Headers = map[string]string{name: value}
		if r := w.buildHeader(&m, &flight{}); r != nil {
			if r.Outcome != broker.Rejected || !strings.HasPrefix(strings.ToLower(name), "nats-") {
				t.Errorf("%q: %+v", name, r)
			}
			return
		}
		got := decode(t, w.header)[name]
		if len(got) == 0 || got[len(got)-1] != strings.Trim(value, " \t") {
			t.Errorf("%q: %q arrived as %q", name, value, got)
		}
	})
}
