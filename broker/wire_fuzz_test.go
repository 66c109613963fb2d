package broker

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// A consumer reads of an event what the message says, in both of its formats, whatever stands in the message.
func FuzzEvents(f *testing.F) {
	f.Add("orders", "k", "T", "application/json", "7", "00-1", []byte(`{"a": 1}`), int64(7))
	f.Add("t", "ü \"%", "日本", "application/json", "", "", []byte(`{broken`), int64(0))
	f.Add("t", "", "\\", "text/plain", "%zz", "\t", []byte{0, 255}, int64(1)<<62)
	f.Fuzz(func(t *testing.T, topic, key, kind, contentType, aggregate, trace string, payload []byte, seq int64) {
		m, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{
			Topic: topic, Key: key, Type: kind, ContentType: contentType, AggregateID: aggregate, Payload: payload, Headers: map[string]string{"traceparent": trace, "x": key},
		})
		if err != nil {
			return
		}
		e := Envelope{Record: &outbox.Record{Message: m, Seq: seq, CreatedAt: time.UnixMicro(seq % (1 << 50))}}
		want := map[string]string{"specversion": "1.0", "id": m.ID.String(), "source": "/s", "type": kind, "subject": aggregate, "partitionkey": key, "traceparent": trace, "datacontenttype": m.ContentType}
		if aggregate == "" {
			want["subject"] = key
		}
		got := readBinary(t, e)
		checkEvent(t, "binary", got, want)
		checkEvent(t, "structured", readStructured(t, e), want)
	})
}

func checkEvent(t *testing.T, format string, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if value, said := got[name]; value != text || said != (text != "") {
			t.Errorf("%s: %s is %q (there: %t), want %q", format, name, value, said, text)
		}
	}
}

// readBinary reads an event as a consumer of NATS does.
func readBinary(t *testing.T, e Envelope) map[string]string {
	t.Helper()
	var out Outgoing
	if err := wire(t, WireConfig{Format: FormatBinary, Source: "/s"}, StyleNATS).Encode(&e, &out); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, h := range out.Headers {
		name, isAttribute := strings.CutPrefix(h.Name, "ce-")
		if !isAttribute {
			continue
		}
		for i := range len(h.Value) {
			if c := h.Value[i]; c <= ' ' || c >= 0x7f || c == '"' {
				t.Errorf("%s: %q is not plain ASCII", name, h.Value)
			}
		}
		value, err := url.PathUnescape(h.Value)
		if err != nil {
			t.Errorf("%s: %q: %v", name, h.Value, err)
		}
		got[name] = value
	}
	if !bytes.Equal(out.Payload, e.Payload) {
		t.Errorf("the payload is %q, want %q", out.Payload, e.Payload)
	}
	return got
}

// readStructured reads an event with another one's parser.
func readStructured(t *testing.T, e Envelope) map[string]string {
	t.Helper()
	var out Outgoing
	if err := wire(t, WireConfig{Format: FormatStructured, Source: "/s"}, StyleKafka).Encode(&e, &out); err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(out.Payload, &fields); err != nil {
		t.Fatalf("%q: %v", out.Payload, err)
	}
	var data []byte
	if text, ok := fields["data_base64"]; ok {
		if err := json.Unmarshal(text, &data); err != nil {
			t.Errorf("data_base64 %q: %v", text, err)
		}
	} else {
		data = bytes.TrimSpace(fields["data"]) // blanks around a value belong to nobody
	}
	if !bytes.Equal(data, e.Payload) && !bytes.Equal(data, bytes.TrimSpace(e.Payload)) {
		t.Errorf("the data is %q, want %q", data, e.Payload)
	}
	delete(fields, "data")
	delete(fields, "data_base64")
	got := map[string]string{}
	for name, text := range fields {
		var value string
		if err := json.Unmarshal(text, &value); err != nil {
			t.Errorf("%s is %q: %v", name, text, err)
		}
		got[name] = value
	}
	return got
}
