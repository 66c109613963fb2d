package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	} `json:"config"`
	State struct {
		Messages uint64 `json:"messages"`
		Bytes    uint64 `json:"bytes"`
	} `json:"state"`
	Error *natsgo.APIError `json:"error"`
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
		if last := l.nc.LastError(); errors.Is(last, natsgo.ErrPermissionViolation) && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, last) // the server says so once, and lets the request wait
		}
		return nil, fmt.Errorf("ask for stream %s: %w", c.Stream, err)
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

// headerRoom is what the headers of a message can come to: 8 KiB of the message's own with 4 bytes of punctuation each
// (counted for 256 of them), Onward's at the limits of their fields, and the broker's slots.
const headerRoom = outbox.MaxHeaders + 256*4 + outbox.MaxType + outbox.MaxTopic + outbox.MaxKey + 3*outbox.MaxField + 1024

// maxBytes is the largest payload that fits beside the largest headers; at least 1, 0 when nothing is known.
func maxBytes(serverLimit int64, s *stream) int {
	limit := int(serverLimit)
	if s != nil && s.Config.MaxMsgSize > 0 && (limit <= 0 || s.Config.MaxMsgSize < limit) {
		limit = s.Config.MaxMsgSize
	}
	if limit <= 0 {
		return 0
	}
	return max(1, limit-headerRoom)
}
