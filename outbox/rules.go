package outbox

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits in bytes. The database checks them too, so that producers without this library are held to them.
const (
	MaxTopic   = 255
	MaxType    = 500
	MaxKey     = 255
	MaxScope   = 64
	MaxField   = 255     // content type, correlation, causation, aggregate and event id: each
	MaxHeaders = 8 << 10 // names and values together
	MaxPayload = 1 << 20
)

// DefaultContentType is the content type of a message that names none.
const DefaultContentType = "application/octet-stream"

// Rules are what a writer holds a message to before the database is asked. The zero value has the limits above and
// nothing else. Rules are safe for concurrent use once in use.
type Rules struct {
	// RequireKey: topics whose messages need a key; a message without one is ErrKeyRequired.
	RequireKey []Pattern
	// MaxPayload lowers the limit on payloads, in bytes; 0 means MaxPayload. More than MaxPayload is refused.
	MaxPayload int
	// Enrich, where set, may add to each message what the context carries: a correlation id, trace headers. It is called
	// once a message before anything is checked, from the goroutine that writes; m.Headers is never nil and is the
	// writer's own copy. What the caller set should win.
	Enrich func(ctx context.Context, m *Message)
}

// Validate reports all faults of the rules at once.
func (r Rules) Validate() error {
	var faults []string
	for _, p := range r.RequireKey {
		if err := p.Validate(); err != nil {
			faults = append(faults, err.Error())
		}
	}
	if r.MaxPayload < 0 || r.MaxPayload > MaxPayload {
		faults = append(faults, fmt.Sprintf("MaxPayload is %d: want 0 to %d bytes", r.MaxPayload, MaxPayload))
	}
	if faults == nil {
		return nil
	}
	return &Error{Code: ErrConfigInvalid.Code, Op: "writer rules", Detail: strings.Join(faults, "; ")}
}

// Prepare returns the message as it is to be stored: enriched, with an id and a content type, AvailableAt in UTC and in
// microseconds, and checked. Writers call it for every message; the caller's message and its headers map stay as they
// are.
//
// The texts of a message are valid UTF-8 without control characters (U+0000 to U+001F, U+007F): brokers and HTTP carry
// them as header lines, where a line break would end the header and another control character may not stand.
//
// Header names are [A-Za-z0-9!#$%&'*+.^_|~-]{1,128}. Reserved for what Onward itself sends, in any case: names that start
// with onward-, ce-, ce_, cloudevents, nats- or webhook-, and content-type, which is Message.ContentType. Values are valid
// UTF-8 without control characters other than tab, as a header line can carry them.
func (r Rules) Prepare(ctx context.Context, m Message) (Message, error) {
	if r.Enrich != nil {
		if m.Headers = maps.Clone(m.Headers); m.Headers == nil {
			m.Headers = map[string]string{}
		}
		r.Enrich(ctx, &m)
	}
	if m.ContentType == "" {
		m.ContentType = DefaultContentType
	}
	m.AvailableAt = availableAt(m.AvailableAt)
	if err := r.check(&m); err != nil {
		return Message{}, err
	}
	if m.ID.IsZero() {
		m.ID = NewID()
	}
	return m, nil
}

// availableAt is the time as databases keep it: in UTC, to the microsecond, rounded up, because "not before" is what it
// says. Times before the year 1 are past anyway; what they become must not be the zero time, which says nothing.
func availableAt(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	t = t.UTC().Add(time.Microsecond - 1).Truncate(time.Microsecond)
	if t.Year() < 1 || t.IsZero() {
		t = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)
	}
	return t
}

func (r Rules) check(m *Message) error {
	if m.Topic == "" {
		return m.fault(ErrTopicRequired, "", "set Message.Topic")
	}
	if m.Type == "" {
		return m.fault(ErrTypeRequired, "", "set Message.Type")
	}
	for _, f := range [...]struct {
		name, text string
		limit      int
	}{
		{"topic", m.Topic, MaxTopic},
		{"type", m.Type, MaxType},
		{"key", m.Key, MaxKey},
		{"scope", m.Scope, MaxScope},
		{"content type", m.ContentType, MaxField},
		{"correlation id", m.CorrelationID, MaxField},
		{"causation id", m.CausationID, MaxField},
		{"aggregate type", m.AggregateType, MaxField},
		{"aggregate id", m.AggregateID, MaxField},
		{"event id", m.EventID, MaxField},
	} {
		if len(f.text) > f.limit {
			return m.fault(ErrFieldTooLong, fmt.Sprintf("%s has %d bytes, the limit is %d", f.name, len(f.text), f.limit),
				"shorten it; what is long belongs into the payload")
		}
		if !isText(f.text, false) {
			return m.fault(ErrFieldInvalid, f.name+" has control characters or is not valid UTF-8",
				"encode it, for example as base64, or put it into the payload")
		}
	}
	if m.Key == "" && r.requiresKey(m.Topic) {
		return m.fault(ErrKeyRequired, "", `set what must stay in order, for example Message{Topic: "`+m.Topic+`", Key: order.ID, ...}`)
	}
	if year := m.AvailableAt.Year(); year > 9999 {
		return m.fault(ErrFieldInvalid, fmt.Sprintf("AvailableAt is in the year %d", year), "choose a time before the year 10000")
	}
	limit := r.MaxPayload
	if limit == 0 {
		limit = MaxPayload
	}
	if len(m.Payload) > limit {
		return m.fault(ErrPayloadTooLarge, fmt.Sprintf("the payload has %d bytes, the limit is %d", len(m.Payload), limit),
			"store it elsewhere and send a reference")
	}
	return m.checkHeaders()
}

func (r Rules) requiresKey(topic string) bool {
	for _, p := range r.RequireKey {
		if p.Match(topic) {
			return true
		}
	}
	return false
}

var (
	headerName      = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)
	reservedHeaders = [...]string{"onward-", "ce-", "ce_", "cloudevents", "nats-", "webhook-"}
)

func (m *Message) checkHeaders() error {
	size := 0
	for name, value := range m.Headers {
		size += len(name) + len(value)
		if !headerName.MatchString(name) {
			return m.fault(ErrHeaderInvalid, fmt.Sprintf("header name %.140q is not allowed", name),
				"use 1 to 128 of A-Z a-z 0-9 and !#$%&'*+.^_|~-")
		}
		if !isText(value, true) {
			return m.fault(ErrHeaderInvalid, "the value of header "+name+" has control characters or is not valid UTF-8",
				"encode it, for example as base64, or put it into the payload")
		}
		lower := strings.ToLower(name)
		if lower == "content-type" {
			return m.fault(ErrHeaderReserved, "header "+name+" is the message's content type", "set Message.ContentType")
		}
		for _, prefix := range reservedHeaders {
			if strings.HasPrefix(lower, prefix) {
				return m.fault(ErrHeaderReserved, "header "+name+" starts with "+prefix, "choose another name")
			}
		}
	}
	if size > MaxHeaders {
		return m.fault(ErrHeadersTooLarge, fmt.Sprintf("the headers have %d bytes, the limit is %d", size, MaxHeaders),
			"put what is large into the payload")
	}
	return nil
}

// fault is a copy of the sentinel that names the message.
func (m *Message) fault(sentinel *Error, detail, hint string) error {
	if detail == "" {
		detail = sentinel.Detail
	}
	return &Error{Code: sentinel.Code, Op: fmt.Sprintf("write message (topic %.60q, type %.60q)", m.Topic, m.Type), Detail: detail, Hint: hint}
}

// isText reports whether a header line can carry s as it is.
func isText(s string, tab bool) bool {
	for i := range len(s) {
		if s[i] < 0x20 && (s[i] != '\t' || !tab) || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}
