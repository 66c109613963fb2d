package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// stream is what we know of the stream: the parts of its configuration and state that decide what it takes.
type stream struct {
	Config struct {
		Name       string        `json:"name"`
		Subjects   []string      `json:"subjects"`
		MaxMsgs    int64         `json:"max_msgs"`
		MaxBytes   int64         `json:"max_bytes"`
		MaxMsgSize int           `json:"max_msg_size"`
		Discard    string        `json:"discard"`
		Duplicates time.Duration `json:"duplicate_window"`
		NoAck      bool          `json:"no_ack"`
		Sealed     bool          `json:"sealed"`

		// what compare mode goes by
		Retention         string            `json:"retention"`
		MaxAge            time.Duration     `json:"max_age"`
		MaxMsgsPerSubject int64             `json:"max_msgs_per_subject"`
		RefusesPerSubject bool              `json:"discard_new_per_subject"`
		Sources           []json.RawMessage `json:"sources"`
		SubjectTransform  json.RawMessage   `json:"subject_transform"`
	} `json:"config"`
	Created time.Time `json:"created"`
	State   struct {
		Messages uint64 `json:"messages"`
		Bytes    uint64 `json:"bytes"`
	} `json:"state"`
	Error *natsgo.APIError `json:"error"`

	unsafe error // in compare mode: why the stream is not fit for it
}

// errNoStream: the server says that there is no such stream.
var errNoStream = errors.New("nats: the stream does not exist")

// lookup asks the server for the stream.
func (l *link) lookup(ctx context.Context, c Config, dials bool) (*stream, error) {
	if !l.nc.IsConnected() {
		return nil, l.down(dials)
	}
	m, err := l.nc.RequestWithContext(ctx, c.api()+".STREAM.INFO."+c.Stream, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for stream %s: %w", c.Stream, l.denial(ctx, err))
	}
	s := &stream{}
	if err := json.Unmarshal(m.Data, s); err != nil {
		return nil, fmt.Errorf("read what the server says of stream %s: %w", c.Stream, err)
	}
	if s.Error != nil {
		if s.Error.ErrorCode == natsgo.JSErrCodeStreamNotFound {
			return nil, errNoStream
		}
		return nil, fmt.Errorf("ask for stream %s: %w", c.Stream, s.Error)
	}
	return s, nil
}

// denial adds to a request's error what the server may have said about it: it says once that the request is not
// permitted, and lets it wait.
func (l *link) denial(ctx context.Context, err error) error {
	if last := l.nc.LastError(); errors.Is(last, natsgo.ErrPermissionViolation) && ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", err, last)
	}
	return err
}

// comparable says why a message of the stream may be gone, or under another subject, when its second copy comes; or nil.
func (s *stream) comparable() error {
	c := s.Config
	fault := func(detail, hint string) error {
		return &outbox.Error{Code: codeUnsafe, Op: "check stream " + c.Name, Detail: detail, Hint: hint}
	}
	switch {
	case c.Retention != "" && c.Retention != "limits":
		return fault("its retention is "+c.Retention+": a message is gone once consumers have it, and a second copy would be stored", "make a stream with --retention limits, or leave no_duplicates off")
	case c.MaxMsgsPerSubject > 0 && !c.RefusesPerSubject:
		return fault(fmt.Sprintf("it keeps %d messages of a key: a second copy of an earlier one would be stored", c.MaxMsgsPerSubject), "nats stream edit "+c.Name+" --max-msgs-per-subject=-1, or leave no_duplicates off")
	case len(c.Sources) > 0:
		return fault("it collects from other streams, past the comparison", "name a stream without sources, or leave no_duplicates off")
	case len(c.SubjectTransform) > 0 && string(c.SubjectTransform) != "null":
		return fault("it changes subjects: those of two keys may become one", "name a stream without a subject transform, or leave no_duplicates off")
	}
	return nil
}

// keeps is for how long the stream has a message at least, as far as age decides.
func (s *stream) keeps() time.Duration {
	if s.Config.MaxAge > 0 {
		return s.Config.MaxAge
	}
	return math.MaxInt64
}

// takes says why the stream takes nothing at the moment, or nil.
func (s *stream) takes() error {
	c, name := s.Config, s.Config.Name
	fault := func(code outbox.Code, detail, hint string) error {
		return &outbox.Error{Code: code, Op: "check stream " + name, Detail: detail, Hint: hint}
	}
	switch {
	case c.NoAck:
		return fault(codeUnsafe, "no_ack is set: nobody learns what was stored", "nats stream edit "+name+" --ack")
	case c.Sealed:
		return fault(broker.CodeUnavailable, "it is sealed: it takes no messages any more", "name another stream")
	case len(c.Subjects) == 0:
		return fault(broker.CodeUnavailable, "it takes no subjects: it is a mirror or collects from other streams", "name the stream that takes the messages, or: nats stream edit "+name+" --subjects 'orders.>'")
	case c.Discard == "new" && c.MaxMsgs > 0 && s.State.Messages >= uint64(c.MaxMsgs):
		return fault(broker.CodeUnavailable, fmt.Sprintf("it is full: %d messages, and it discards new ones", s.State.Messages), "raise max_msgs, or let consumers take messages away")
	case c.Discard == "new" && c.MaxBytes > 0 && s.State.Bytes >= uint64(c.MaxBytes):
		return fault(broker.CodeUnavailable, fmt.Sprintf("it is full: %d bytes, and it discards new messages", s.State.Bytes), "raise max_bytes, or let consumers take messages away")
	}
	return nil
}

// maxBytes is the largest payload that fits beside the largest headers; at least 1, 0 when nothing is known. The
// publisher's mutex is held.
func (p *Publisher) maxBytes() int {
	limit, s := int(p.limit), p.stream
	if s != nil && s.Config.MaxMsgSize > 0 && (limit <= 0 || s.Config.MaxMsgSize < limit) {
		limit = s.Config.MaxMsgSize
	}
	if limit <= 0 {
		return 0
	}
	return p.wire.MaxPayload(limit)
}
