package servicebus

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
	"unicode/utf16"

	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// maxSession is how many characters (of UTF-16) the service takes in a session's id.
const maxSession = 128

// scheduled is the annotation with the time at which the service hands a message out.
const scheduled = "x-opt-scheduled-enqueue-time"

// build makes the message that goes out, with a copy of the payload in memory that the next one overwrites; a fault is its answer.
func (l *lane) build(e *broker.Envelope) (*amqp.Message, *broker.Result) {
	p, out := l.publisher, &l.out
	if err := p.wire.Encode(e, out); err != nil {
		r := templateFailed.result(err)
		if outbox.CodeOf(err) != r.Code {
			r = badText.result(err)
		}
		return nil, &r
	}
	l.payload = append(l.payload[:0], out.Payload...)
	m := amqp.NewMessage(l.payload)
	m.Properties = &amqp.MessageProperties{MessageID: e.ID.String(), GroupID: text(session(out.Key)), Subject: text(e.Type), ContentType: text(out.ContentType)}
	if e.CorrelationID != "" {
		m.Properties.CorrelationID = e.CorrelationID
	}
	m.ApplicationProperties = make(map[string]any, len(out.Headers))
	for _, h := range out.Headers {
		if _, twice := m.ApplicationProperties[h.Name]; !twice { // ours come first
			m.ApplicationProperties[h.Name] = h.Value
		}
	}
	at, asked := e.Record.Headers[p.cfg.ScheduleHeader]
	if !asked || p.cfg.ScheduleHeader == "" {
		return m, nil
	}
	when, err := time.Parse(time.RFC3339, at)
	if err != nil {
		r := badSchedule.errorf("header %s: %w", p.cfg.ScheduleHeader, err)
		return nil, &r
	}
	m.Annotations = amqp.Annotations{scheduled: when.UTC()}
	return m, nil
}

// text is a property, or none where it is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// session is the id of a key's session: the key, or where that is too long for the service what stands for it alone.
func session(key string) string {
	if len(key) <= maxSession || len(utf16.Encode([]rune(key))) <= maxSession {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
