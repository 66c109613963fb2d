package jsonl

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/internal/jsontext"
	"github.com/onwardhq/onward/outbox"
)

// timeFormat is RFC 3339 with microseconds, as onward-time has it.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// encoder makes lines. It is safe for concurrent use.
type encoder struct {
	wire   *broker.Wire
	fields []string // of the raw format: what is listed
}

func newEncoder(c broker.WireConfig) (*encoder, error) {
	wire, err := broker.NewWire(c, broker.StyleAMQP)
	return &encoder{wire, slices.Compact(slices.Sorted(slices.Values(c.Fields)))}, err
}

// appendLine appends a message as one line with its line break.
func (c *encoder) appendLine(b []byte, e *broker.Envelope) ([]byte, error) {
	if c.wire.Format() == broker.FormatRaw {
		return appendObject(b, e, c.fields)
	}
	var out broker.Outgoing
	if err := c.wire.Encode(e, &out); err != nil {
		return b, err
	}
	for i, char := range out.Payload { // in JSON a line break stands between values alone
		if char == '\n' || char == '\r' {
			out.Payload[i] = ' '
		}
	}
	return append(append(b, out.Payload...), '\n'), nil
}

// appendObject appends a line of the raw format. The fields are those of the raw format without their
// prefix (docs/names.md, section 1), in one order; what is empty is left out. encoding/json is not used because it
// changes payloads: it removes their blanks.
func appendObject(b []byte, e *broker.Envelope, listed []string) ([]byte, error) {
	if err := checkTexts(e); err != nil {
		return b, err
	}
	b = jsontext.Append(b, `{"id":`, e.ID.String())
	b = jsontext.Append(b, `,"topic":`, e.Topic)
	b = appendOptional(b, `,"key":`, e.Key)
	b = jsontext.Append(b, `,"type":`, e.Type)
	b = jsontext.Append(b, `,"created_at":`, e.CreatedAt.UTC().Format(timeFormat))
	b = appendNumber(b, `,"seq":`, e.Seq)
	if e.KeySeq != 0 {
		b = appendNumber(b, `,"key_seq":`, e.KeySeq)
	}
	b = appendNumber(b, `,"epoch":`, e.Epoch)
	b = appendOptional(b, `,"lineage":`, e.Lineage)
	b = appendOptional(b, `,"correlation_id":`, e.CorrelationID)
	b = appendOptional(b, `,"causation_id":`, e.CausationID)
	b = appendOptional(b, `,"content_type":`, e.ContentType)
	for _, name := range listed {
		b = appendListed(b, e, name)
	}
	if len(e.Record.Headers) > 0 {
		before := `,"headers":{`
		for _, name := range slices.Sorted(maps.Keys(e.Record.Headers)) {
			b = jsontext.Append(b, before, name)
			b = jsontext.Append(b, ":", e.Record.Headers[name])
			before = ","
		}
		b = append(b, '}')
	}
	return append(appendPayload(b, e.ContentType, e.Payload), "}\n"...), nil
}

// appendListed writes a field that is in wire_fields.
func appendListed(b []byte, e *broker.Envelope, name string) []byte {
	switch name {
	case "scope":
		return appendOptional(b, `,"scope":`, e.Scope)
	case "aggregate_type":
		return appendOptional(b, `,"aggregate_type":`, e.AggregateType)
	case "aggregate_id":
		return appendOptional(b, `,"aggregate_id":`, e.AggregateID)
	case "event_id":
		return appendOptional(b, `,"event_id":`, e.EventID)
	}
	b = appendOptional(b, `,"relay":`, e.Relay) // diagnosis
	return appendNumber(b, `,"attempt":`, int64(e.Attempt))
}

// appendPayload writes the payload so that its bytes can be had back: as it is where it is JSON on one line, as text
// where it is text, and as base64 else. An empty one is left out.
func appendPayload(b []byte, contentType string, payload []byte) []byte {
	isJSON := jsontext.Says(contentType)
	switch {
	case len(payload) == 0:
		return b
	case isJSON && isOneLine(payload) && jsontext.Valid(payload):
		return append(append(b, `,"payload":`...), payload...)
	case (isJSON || isText(contentType)) && utf8.Valid(payload) && !slices.Contains(payload, 0):
		return jsontext.Append(b, `,"payload_text":`, payload)
	default:
		b = append(b, `,"payload_base64":"`...)
		return append(base64.StdEncoding.AppendEncode(b, payload), '"')
	}
}

func isText(contentType string) bool {
	contentType = strings.TrimSpace(contentType)
	return len(contentType) >= 5 && strings.EqualFold(contentType[:5], "text/")
}

// isOneLine: JSON that can stand in a line, and that a parser can give back with all its bytes: blanks around a value
// belong to nobody.
func isOneLine(payload []byte) bool {
	first, last := payload[0], payload[len(payload)-1]
	if first == ' ' || first == '\t' || last == ' ' || last == '\t' {
		return false
	}
	return !slices.Contains(payload, '\n') && !slices.Contains(payload, '\r')
}

// checkTexts refuses what a JSON string cannot carry. The database holds its own messages to this already.
func checkTexts(e *broker.Envelope) error {
	texts := []string{
		e.Topic, e.Key, e.Type, e.ContentType, e.CorrelationID, e.CausationID, e.Lineage, e.Scope, e.AggregateType, e.AggregateID, e.EventID, e.Relay,
	}
	for name, value := range e.Record.Headers {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return &outbox.Error{Code: outbox.ErrFieldInvalid.Code, Op: "write line", Detail: fmt.Sprintf("%.60q is not valid UTF-8", text)}
		}
	}
	return nil
}

func appendOptional(b []byte, before, text string) []byte {
	if text == "" {
		return b
	}
	return jsontext.Append(b, before, text)
}

func appendNumber(b []byte, before string, n int64) []byte {
	return strconv.AppendInt(append(b, before...), n, 10)
}
