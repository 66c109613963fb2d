package broker

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/internal/jsontext"
	"github.com/onwardhq/onward/outbox"
)

// structuredType is the content type of an event in its JSON format.
const structuredType = "application/cloudevents+json; charset=UTF-8"

// attributes are those of an event, the required ones first, then extensions. The content type is not among them:
// bindings have a place of their own for it.
var attributes = [...]string{
	"specversion", "id", "source", "type", "subject", "time",
	"partitionkey", "sequence", "correlationid", "causationid", "traceparent", "tracestate",
}

// event is the value of each attribute; the specification knows no empty ones.
func (w *Wire) event(e *Envelope, out *Outgoing) [len(attributes)]string {
	subject := e.AggregateID
	if subject == "" {
		subject = e.Record.Key
	}
	return [...]string{
		"1.0", e.ID.String(), w.source, e.Type, subject, e.CreatedAt.UTC().Format(timeFormat),
		e.Record.Key, sequence(e.Seq), e.CorrelationID, e.CausationID, out.own(e, "traceparent"), out.own(e, "tracestate"),
	}
}

// sequence is a number in a text of one length, so that texts sort as numbers do.
func sequence(n int64) string {
	var b [20]byte
	digits := strconv.AppendInt(b[:0], n, 10)
	if n < 0 || len(digits) == len(b) {
		return string(digits)
	}
	const zeros = "00000000000000000000"
	return zeros[len(digits):] + string(digits)
}

// own is a header of the message, whatever the case of its name.
func (out *Outgoing) own(e *Envelope, name string) string {
	for _, own := range out.names {
		if strings.EqualFold(own, name) {
			return e.Record.Headers[own]
		}
	}
	return ""
}

// attributeHeaders are the names of the attributes as headers of a broker.
func (s Style) attributeHeaders() (names [len(attributes)]string) {
	prefix := "ce-"
	switch s {
	case StyleKafka:
		prefix = "ce_"
	case StyleAMQP:
		prefix = "cloudEvents_"
	case StyleNATS, StyleHTTP, StyleRedis:
	}
	for i, name := range attributes {
		names[i] = prefix + name
	}
	return names
}

// binary: attributes as headers, as the broker's binding writes them.
func (w *Wire) binary(e *Envelope, out *Outgoing) {
	escape := func(value string) string { return value }
	if w.style == StyleNATS || w.style == StyleHTTP {
		escape = percentEncode
	}
	for i, value := range w.event(e, out) {
		out.add(w.attributes[i], escape(value))
	}
	switch w.style {
	case StyleNATS, StyleRedis: // to NATS a content-type means the structured format
		out.add("ce-datacontenttype", escape(out.ContentType))
	case StyleKafka, StyleHTTP:
		out.add("content-type", out.ContentType)
	case StyleAMQP: // the property alone
	}
}

// percentEncode writes a value as the bindings of HTTP and NATS have it: blanks, quotes, per cent and what is not
// printable ASCII as %XX.
func percentEncode(value string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	for i := range len(value) {
		if plain(value[i]) {
			continue
		}
		const digits = "0123456789ABCDEF"
		b := append(make([]byte, 0, len(value)+16), value[:i]...)
		for ; i < len(value); i++ {
			if c := value[i]; plain(c) {
				b = append(b, c)
			} else {
				b = append(b, '%', digits[c>>4], digits[c&15])
			}
		}
		return string(b)
	}
	return value
}

// structured: attributes and data as one JSON object.
func (w *Wire) structured(e *Envelope, out *Outgoing) error {
	b := make([]byte, 0, 1024+len(e.Payload)*4/3)
	fault, before := "", `{"`
	put := func(name, value string) {
		if value == "" {
			return
		}
		if !utf8.ValidString(value) {
			fault = name
			return
		}
		b = append(append(b, before...), name...)
		b, before = jsontext.Append(b, `":`, value), `,"`
	}
	for i, value := range w.event(e, out) {
		put(attributes[i], value)
	}
	put("datacontenttype", out.ContentType)
	if fault != "" {
		return &outbox.Error{Code: outbox.ErrFieldInvalid.Code, Op: "write event", Detail: fault + " is not valid UTF-8"}
	}
	switch {
	case len(e.Payload) == 0:
	case jsontext.Says(out.ContentType) && jsontext.Valid(e.Payload):
		b = append(append(b, `,"data":`...), e.Payload...)
	default:
		b = append(b, `,"data_base64":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, e.Payload), '"')
	}
	out.Payload, out.ContentType = append(b, '}'), structuredType
	if w.style != StyleAMQP {
		out.add("content-type", structuredType)
	}
	return nil
}
