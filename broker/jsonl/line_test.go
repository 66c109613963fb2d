package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// record is a line as a consumer reads it.
type record struct {
	ID            string            `json:"id"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key"`
	Type          string            `json:"type"`
	CreatedAt     string            `json:"created_at"`
	Seq           json.Number       `json:"seq"`
	KeySeq        json.Number       `json:"key_seq"`
	Epoch         json.Number       `json:"epoch"`
	Lineage       string            `json:"lineage"`
	CorrelationID string            `json:"correlation_id"`
	CausationID   string            `json:"causation_id"`
	ContentType   string            `json:"content_type"`
	Headers       map[string]string `json:"headers"`
	Payload       json.RawMessage   `json:"payload"`
	PayloadText   *string           `json:"payload_text"`
	PayloadBase64 []byte            `json:"payload_base64"`
}

// parse reads a line and refuses fields that it does not know.
func parse(line []byte) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	return r, err
}

func (r record) payload() []byte {
	switch {
	case r.Payload != nil:
		return r.Payload
	case r.PayloadText != nil:
		return []byte(*r.PayloadText)
	}
	return r.PayloadBase64
}

// message has the line's fields as headers of the raw format.
func (r record) message(position string) brokertest.Message {
	m := brokertest.Message{Payload: r.payload(), Position: position}
	for _, h := range []brokertest.Header{
		{Name: "onward-id", Value: r.ID},
		{Name: "onward-topic", Value: r.Topic},
		{Name: "onward-key", Value: r.Key},
		{Name: "onward-type", Value: r.Type},
		{Name: "onward-time", Value: r.CreatedAt},
		{Name: "onward-seq", Value: r.Seq.String()},
		{Name: "onward-key-seq", Value: r.KeySeq.String()},
		{Name: "onward-epoch", Value: r.Epoch.String()},
		{Name: "onward-lineage", Value: r.Lineage},
		{Name: "onward-correlation-id", Value: r.CorrelationID},
		{Name: "onward-causation-id", Value: r.CausationID},
		{Name: "content-type", Value: r.ContentType},
	} {
		if h.Value != "" {
			m.Headers = append(m.Headers, h)
		}
	}
	for name, value := range r.Headers {
		m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: value})
	}
	return m
}

// full has every field that a message can have; those that never go out, too.
func full() broker.Envelope {
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{
				ID: outbox.ID{1, 2, 3, 4, 5, 6, 0x70, 8, 0x89, 10, 11, 12, 13, 14, 15, 16}, Topic: "orders.paid", Key: "order-ü",
				Type: "OrderPaid", ContentType: "application/json", Scope: "tenant", CorrelationID: "corr", CausationID: "cause",
				AggregateType: "order", AggregateID: "7", EventID: "event", Payload: []byte(`{"total": 12.50, "total": 1e400}`),
				Headers: map[string]string{"zone": "eu", "traceparent": "00-4b-00-01", "quoted": "\"\\\t<&>"},
			},
			Partition: 5, Seq: 4711, KeySeq: 12,
			CreatedAt: time.Date(2026, 3, 1, 0, 30, 0, 1500, time.FixedZone("CET", 3600)),
		},
		Epoch: 9, Lineage: "2", Attempt: 6,
	}
}

func rawLine(e broker.Envelope) ([]byte, error) { return formatted(broker.WireConfig{}, e) }

func formatted(c broker.WireConfig, e broker.Envelope) ([]byte, error) {
	lines, err := newEncoder(c)
	if err != nil {
		return nil, err
	}
	return lines.appendLine(nil, &e)
}

// The golden file is what docs/brokers/jsonl.md describes.
func TestLines(t *testing.T) {
	t.Parallel()
	var got []byte
	add := func(change func(e *broker.Envelope)) {
		t.Helper()
		e := full()
		change(&e)
		line, err := rawLine(e)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line...)
	}
	add(func(*broker.Envelope) {})
	add(func(e *broker.Envelope) {
		*e.Record = outbox.Record{Message: outbox.Message{ID: e.ID, Topic: "t", Type: "T"}, Seq: 1}
		e.Epoch, e.Lineage = 1, ""
	})
	add(func(e *broker.Envelope) {
		e.Record.Headers, e.ContentType, e.Payload = nil, "text/plain; charset=utf-8", []byte("line\r\nnext \"ü\" \x01\u2028")
	})
	add(func(e *broker.Envelope) { e.Record.Headers, e.Payload = nil, []byte("{\n  \"total\": 12\n}") })
	add(func(e *broker.Envelope) {
		e.Record.Headers, e.ContentType, e.Payload = nil, "application/octet-stream", []byte("{}")
	})
	for _, c := range []broker.WireConfig{
		{Fields: []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis", "scope"}},
		{Format: broker.FormatStructured, Source: "/shop"},
	} {
		e := full()
		e.Relay, e.Record.Payload = "relay-1", []byte("{\n  \"total\": 12\r\n}")
		line, err := formatted(c, e)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, line...)
	}
	file := "testdata/lines.golden"
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("lines changed (go test -update writes %s):\n got\n%s\nwant\n%s", file, got, want)
	}
}

func TestPayloadsAreJSONTextOrBase64(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ contentType, payload, field string }{
		{"application/json", `{"a": 1,  "a":2}`, "payload"},
		{"Application/JSON; charset=UTF-8", `null`, "payload"},
		{"application/vnd.orders+json", `"\u00fc"`, "payload"},
		{"application/json", "[1,\t2]", "payload"},
		{"application/json", " {}", "payload_text"},
		{"application/json", "{}\t", "payload_text"},
		{"application/json", "{}\n", "payload_text"},
		{"application/json", "[1,\r2]", "payload_text"},
		{"application/json", `{"a":}`, "payload_text"},
		{"application/json", "\"\xff\"", "payload_base64"},
		{"application/jsonx", `{}`, "payload_base64"},
		{"text/json", `{}`, "payload_text"},
		{"text/html", "<b>&</b>", "payload_text"},
		{"text/plain", "\xc3", "payload_base64"},
		{"text/plain", "a\x00", "payload_base64"},
		{"text", "a", "payload_base64"},
		{"", "a", "payload_base64"},
		{"application/json", "", ""},
	} {
		line := string(append(appendPayload([]byte(`{"x":1`), c.contentType, []byte(c.payload)), '}'))
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("%q %q: %s: %v", c.contentType, c.payload, line, err)
		}
		delete(fields, "x")
		if _, ok := fields[c.field]; len(fields) > 1 || ok != (c.field != "") {
			t.Errorf("%q %q: %s, want %q", c.contentType, c.payload, line, c.field)
		}
	}
}

func TestATextThatJSONCannotCarryIsRejected(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(e *broker.Envelope){
		"topic": func(e *broker.Envelope) { e.Topic = "a\xff" }, "key": func(e *broker.Envelope) { e.Key = "a\xff" },
		"type": func(e *broker.Envelope) { e.Type = "a\xff" }, "content type": func(e *broker.Envelope) { e.ContentType = "a\xff" },
		"correlation id": func(e *broker.Envelope) { e.CorrelationID = "a\xff" }, "causation id": func(e *broker.Envelope) { e.CausationID = "a\xff" },
		"lineage": func(e *broker.Envelope) { e.Lineage = "a\xff" }, "header name": func(e *broker.Envelope) { e.Record.Headers["a\xff"] = "" },
		"header": func(e *broker.Envelope) { e.Record.Headers["a"] = "\xff" },
	} {
		e := full()
		spoil(&e)
		if line, err := rawLine(e); !errors.Is(err, outbox.ErrFieldInvalid) || len(line) != 0 {
			t.Errorf("%s: %q, %v", name, line, err)
		}
	}
}

// FuzzLine: whatever a message has, its line is one line, and a parser has every byte back.
func FuzzLine(f *testing.F) {
	f.Add("orders", "k", "T", "application/json", "name", "value", []byte(`{"a": 1}`))
	f.Add("\u2028", "\x00\x1f\x7f", "\"\\/", "text/plain", "", "\ufeff", []byte("a\nb"))
	f.Add("t", "", "T", "x/y+json", "a", "b", []byte(" [1]"))
	f.Fuzz(func(t *testing.T, topic, key, kind, contentType, name, value string, payload []byte) {
		e := full()
		e.Topic, e.Key, e.Type, e.ContentType, e.Payload, e.Record.Headers = topic, key, kind, contentType, payload, map[string]string{name: value}
		line, err := rawLine(e)
		if err != nil {
			return
		}
		if n := bytes.Count(line, []byte("\n")); n != 1 || !bytes.HasSuffix(line, []byte("}\n")) || bytes.ContainsRune(line, '\r') {
			t.Fatalf("%q is not one line", line)
		}
		r, err := parse(line)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got := fmt.Sprint(r.Topic, "|", r.Key, "|", r.Type, "|", r.ContentType, "|", r.Headers, "|", string(r.payload()))
		want := fmt.Sprint(topic, "|", key, "|", kind, "|", contentType, "|", map[string]string{name: value}, "|", string(payload))
		if got != want || strings.Contains(string(line), "tenant") {
			t.Errorf("%q\n got %q\nwant %q", line, got, want)
		}
	})
}

func TestSettingsThatALineHasNoUseForAreRefused(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]broker.WireConfig{
		"cloudevents-structured is for lines":              {Format: broker.FormatBinary, Source: "/s"},
		"wire_fields are headers of an event":              {Format: broker.FormatStructured, Source: "/s", Fields: []string{"scope"}},
		"a file has no topics":                             {Topic: "x"},
		"key_template and routing_key_template are for":    {Key: "x"},
		"topic_template, key_template and routing_key":     {RoutingKey: "x"},
		`wire_fields "nope" is not one of`:                 {Fields: []string{"nope"}},
		"source is for the formats cloudevents-binary and": {Source: "/s"},
	} {
		err := Config{Path: "x", Wire: c}.Validate()
		if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}

func TestPublisherDescribesItsLines(t *testing.T) {
	t.Parallel()
	p, err := NewPublisher(Config{Path: filepath.Join(t.TempDir(), "x"), Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/s"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(t.Context()) }()
	if got := p.Describe(); got != "format=cloudevents-structured source=/s" {
		t.Errorf("got %q", got)
	}
}
