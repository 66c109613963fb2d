package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

var styles = []struct {
	name  string
	style Style
}{{"NATS", StyleNATS}, {"Kafka", StyleKafka}, {"AMQP", StyleAMQP}, {"HTTP", StyleHTTP}, {"Redis", StyleRedis}}

func wire(tb testing.TB, c WireConfig, s Style) *Wire {
	tb.Helper()
	w, err := NewWire(c, s)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// traced is envelope() as a traced request writes it.
func traced() Envelope {
	e := envelope()
	e.Relay = "relay-1"
	e.Record.Headers = map[string]string{
		"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=1,other=2", "baggage": "user=%C3%BC", "zone": "eu",
	}
	return e
}

func parcel(tb testing.TB, w *Wire, e Envelope) string {
	tb.Helper()
	var out Outgoing
	if err := w.Encode(&e, &out); err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	for _, h := range out.Headers {
		fmt.Fprintf(&b, "%s: %s\n", h.Name, h.Value)
	}
	payload := strconv.Quote(string(out.Payload))
	if json.Valid(out.Payload) {
		payload = string(out.Payload)
	}
	fmt.Fprintf(&b, "\n[%s] %s\n", out.ContentType, payload)
	return b.String()
}

// The golden file is docs/names.md, section 1: everything that goes out in each format to each broker, in its order.
func TestFormatsOfEachBroker(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	all := []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis"}
	bare := Envelope{Record: &outbox.Record{Message: outbox.Message{Topic: "t", Type: "T", ContentType: outbox.DefaultContentType, Payload: []byte{0, 255}}, Seq: 1}}
	for _, s := range styles {
		for _, f := range []Format{FormatRaw, FormatBinary, FormatStructured} {
			c := WireConfig{Format: f}
			if f != FormatRaw {
				c.Source = "/shop/orders"
			}
			fmt.Fprintf(&got, "== %s, %s\n%s", s.name, f, parcel(t, wire(t, c, s.style), traced()))
			fmt.Fprintf(&got, "== %s, %s: nothing but what is required\n%s", s.name, f, parcel(t, wire(t, c, s.style), bare))
			c.Fields = all
			fmt.Fprintf(&got, "== %s, %s, wire_fields %s\n%s", s.name, f, strings.Join(all, ", "), parcel(t, wire(t, c, s.style), traced()))
		}
	}
	const file = "testdata/formats.golden"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the wire changed (go test -update writes %s):\n%s", file, got.String())
	}
}

// The golden file shows it; this says it for each field, so that nobody takes a leak in with -update.
func TestInternalFieldsGoOutOnlyWhereListed(t *testing.T) {
	t.Parallel()
	e := traced()
	e.Record.Scope, e.Record.AggregateType, e.Record.EventID, e.Relay, e.Attempt = "secretscope", "secrettype", "secretevent", "secretrelay", 987
	e.Record.Payload, e.Record.AggregateID = []byte("{}"), "" // the subject of an event is the aggregate's id
	marks := map[string]string{"scope": "secretscope", "aggregate_type": "secrettype", "event_id": "secretevent", "diagnosis": "secretrelay"}
	for _, s := range styles {
		for _, f := range []Format{FormatRaw, FormatBinary, FormatStructured} {
			c := WireConfig{Format: f}
			if f != FormatRaw {
				c.Source = "/s"
			}
			if text := parcel(t, wire(t, c, s.style), e); strings.Contains(text, "secret") || strings.Contains(text, "987") {
				t.Errorf("%s, %s: an internal field goes out:\n%s", s.name, f, text)
			}
			for name, mark := range marks {
				c.Fields = []string{name}
				if text := parcel(t, wire(t, c, s.style), e); strings.Count(text, "secret") != 1 || !strings.Contains(text, mark) {
					t.Errorf("%s, %s, wire_fields %s: want that field alone:\n%s", s.name, f, name, text)
				}
			}
		}
	}
}

func TestStructuredEventCarriesThePayload(t *testing.T) {
	t.Parallel()
	w := wire(t, WireConfig{Format: FormatStructured, Source: "/s"}, StyleKafka)
	for _, c := range []struct{ contentType, payload, want string }{
		{"application/json", `{ "n": 1e400 }`, `"data":{ "n": 1e400 }`},
		{"application/vnd.shop+json; charset=utf-8", `"text"`, `"data":"text"`},
		{"application/json", `{broken`, `"data_base64":"e2Jyb2tlbg=="`},
		{"application/json", "\"\xff\"", `"data_base64":"Iv8i"`},
		{"text/plain", `1`, `"data_base64":"MQ=="`},
		{"application/octet-stream", "", ``},
	} {
		e := envelope()
		e.Record.ContentType, e.Record.Payload = c.contentType, []byte(c.payload)
		var out Outgoing
		if err := w.Encode(&e, &out); err != nil {
			t.Fatal(err)
		}
		if !json.Valid(out.Payload) || strings.Count(string(out.Payload), `"data`) != 1+strings.Count(c.want, `"data`) || !strings.HasSuffix(string(out.Payload), c.want+"}") {
			t.Errorf("%s %q: got %s, want %s at its end", c.contentType, c.payload, out.Payload, c.want)
		}
	}
}

func TestWireSettingsAreRefusedAllAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		c    WireConfig
		want []string
	}{
		{WireConfig{}, nil},
		{WireConfig{Format: FormatBinary, Source: "https://shop.example/a?b=%20#c"}, nil},
		{WireConfig{Format: "avro"}, []string{`format "avro" is not one of raw, cloudevents-binary, cloudevents-structured`}},
		{WireConfig{Source: "/s"}, []string{"source is for the formats cloudevents-binary and cloudevents-structured"}},
		{WireConfig{Format: FormatBinary}, []string{"source is missing: name what the messages come from"}},
		{WireConfig{Format: FormatStructured, Source: "a b"}, []string{`source "a b" is not a URI reference: write " " as %20`}},
		{WireConfig{Format: FormatStructured, Source: "%zz"}, []string{`source "%zz" is not a URI reference`}},
		{
			WireConfig{Format: FormatBinary, Fields: []string{"scope", "partition"}, Topic: "{{.Tpoic}}", Key: "{{", RoutingKey: "{{.Key | nosuch}}"},
			[]string{
				"source is missing", `wire_fields "partition" is not one of aggregate_id, aggregate_type, diagnosis, event_id, scope`,
				`topic_template "{{.Tpoic}}" names .Tpoic, which a message does not have: known are .AggregateID, `,
				`key_template "{{" cannot be read: :1: unclosed action`, `routing_key_template "{{.Key | nosuch}}" cannot be read: :1: function "nosuch" not defined`,
			},
		},
	} {
		err := c.c.Validate()
		if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%+v: %v", c.c, err)
		}
		for _, want := range c.want {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v\nwant %s", c.c, err, want)
			}
		}
		if w, errNew := NewWire(c.c, StyleHTTP); (errNew == nil) != (err == nil) || (w == nil) != (err != nil) {
			t.Errorf("%+v: NewWire and Validate do not agree: %v, %v", c.c, errNew, err)
		}
	}
}

func TestWireDescribesWhatIsNotTheDefault(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]WireConfig{
		"": {Format: FormatRaw, Topic: "{{.Topic}}", Key: "{{.Key}}", RoutingKey: "{{.Topic}}"},
		`format=cloudevents-binary source=/s wire_fields=event_id,scope topic_template="{{lower .Topic}}" key_template={{.Scope}}`: {
			Format: FormatBinary, Source: "/s", Fields: []string{"scope", "event_id", "scope"}, Topic: "{{lower .Topic}}", Key: "{{.Scope}}",
		},
	} {
		if got := wire(t, c, StyleNATS).Describe(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRefuseKeepsTheCode(t *testing.T) {
	t.Parallel()
	if r := Refuse(outbox.ErrHeaderInvalid); r.Outcome != Rejected || r.Code != outbox.ErrHeaderInvalid.Code || r.Err == nil {
		t.Errorf("got %+v", r)
	}
	if r := Refuse(errors.New("other")); r.Outcome != Rejected || r.Code != CodeRejected {
		t.Errorf("got %+v", r)
	}
}

// Overhead and MaxPayload hold for the largest message that the outbox takes.
func TestOverheadIsEnough(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat(`"`, n) }
	e := envelope()
	e.Seq, e.KeySeq, e.Epoch, e.Lineage, e.Relay, e.Attempt = 1<<62, 1<<62, 1<<62, long(20), long(200), 1<<31
	m := &e.Record.Message
	m.Topic, m.Key, m.Type, m.Scope = long(outbox.MaxTopic), long(outbox.MaxKey), long(outbox.MaxType), long(outbox.MaxScope)
	m.CorrelationID, m.CausationID, m.AggregateType, m.AggregateID, m.EventID = long(255), long(255), long(255), long(255), long(255)
	m.ContentType, m.Payload = long(255), make([]byte, 300_000)
	m.Headers = map[string]string{"traceparent": long(4000), "tracestate": long(outbox.MaxHeaders - 4000 - len("traceparent"+"tracestate"))}
	for _, s := range styles {
		for _, f := range []Format{FormatRaw, FormatBinary, FormatStructured} {
			c := WireConfig{Format: f, Fields: []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis"}}
			if f != FormatRaw {
				c.Source = "/" + strings.Repeat("s", 500)
			}
			w := wire(t, c, s.style)
			var out Outgoing
			if err := w.Encode(&e, &out); err != nil {
				t.Fatal(err)
			}
			size := len(out.Payload)
			for _, h := range out.Headers {
				size += len(h.Name) + len(h.Value) + 4
			}
			if fits := w.MaxPayload(size + 200); fits > len(m.Payload)+200 || fits < len(m.Payload)-60_000 {
				t.Errorf("%s, %s: of %d bytes the payload may be %d, and was %d", s.name, f, size, fits, len(m.Payload))
			}
			if w.MaxPayload(10) != 1 {
				t.Error("the least is 1")
			}
		}
	}
}

// A publisher that sends many messages keeps one Outgoing: then the raw format costs the texts that it has to make (id,
// time, sequence, epoch, sequence of the key), and nothing else.
func TestRawCostsTheTextsAlone(t *testing.T) { //nolint:paralleltest // other tests would allocate meanwhile
	w, e := wire(t, WireConfig{}, StyleNATS), traced()
	e.KeySeq, e.Epoch = 4712, 1234
	var out Outgoing
	encode := func() {
		if err := w.Encode(&e, &out); err != nil {
			t.Error(err)
		}
	}
	if got := testing.AllocsPerRun(100, encode); got > 5 {
		t.Errorf("%v allocations a message, want 5", got)
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, f := range []Format{FormatRaw, FormatBinary, FormatStructured} {
		b.Run(string(f), func(b *testing.B) {
			c := WireConfig{Format: f}
			if f != FormatRaw {
				c.Source = "/s"
			}
			w, e := wire(b, c, StyleKafka), traced()
			var out Outgoing
			b.ReportAllocs()
			for b.Loop() {
				_ = w.Encode(&e, &out)
			}
		})
	}
	b.Run("Envelope.Headers", func(b *testing.B) {
		e, n := traced(), 0
		b.ReportAllocs()
		for b.Loop() {
			for name := range e.Headers() {
				n += len(name)
			}
		}
	})
}
