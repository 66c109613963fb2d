package nats

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
)

// link is a connection in use: its inbox takes the acknowledgements, one token for each message sent.
type link struct {
	publisher *Publisher
	nc        *natsgo.Conn
	inbox     string // with the dot at its end
	sub       *natsgo.Subscription
	over      atomic.Bool // the error handler stays with the connection, but listens no longer
}

func (p *Publisher) newLink(nc *natsgo.Conn) (*link, error) {
	l := &link{publisher: p, nc: nc, inbox: nc.NewInbox() + "."}
	var err error
	if l.sub, err = nc.Subscribe(l.inbox+"*", l.reply); err != nil {
		return nil, fmt.Errorf("nats publisher: subscribe to acknowledgements: %w", err)
	}
	if err := l.sub.SetPendingLimits(-1, -1); err != nil { // MaxPending bounds them; none may be dropped
		return nil, fmt.Errorf("nats publisher: %w", err)
	}
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(c *natsgo.Conn, s *natsgo.Subscription, err error) {
		if !l.over.Load() {
			l.hear(err)
		}
		if before != nil {
			before(c, s, err)
		}
	})
	return l, nil
}

// close ends the link, and the connection if it is ours.
func (l *link) close(connection bool) {
	l.over.Store(true)
	_ = l.sub.Unsubscribe() // fails only where the connection is closed
	if connection {
		l.nc.Close()
	}
}

// epoch grows with each reconnect.
func (l *link) epoch() uint64 { return l.nc.Stats().Reconnects }

// downError says why there is no connection, and what to do.
type downError struct {
	what, hint string
	cause      error
}

func (e *downError) Error() string { return "nats: " + e.what }

func (l *link) down(dials bool) error {
	if l.nc.IsClosed() && !dials {
		return &downError{"the connection is closed for good", "make a new connection and publisher, or let Dial own the connection", l.nc.LastError()}
	}
	return &downError{
		"there is no connection to " + strings.Join(redacted(l.nc.Servers()), ", "),
		"start the server, or correct the address, user or TLS settings", l.nc.LastError(),
	}
}

// ack is the server's answer to a message.
type ack struct {
	Stream    string           `json:"stream"`
	Seq       uint64           `json:"seq"`
	Duplicate bool             `json:"duplicate"`
	Error     *natsgo.APIError `json:"error"`
}

// reply takes one answer. nats.go calls it from one goroutine.
func (l *link) reply(m *natsgo.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, l.inbox), 36, 64)
	if err != nil {
		return
	}
	p := l.publisher
	if len(m.Data) == 0 {
		if m.Header.Get("Status") == "503" {
			p.question(token, noStream, natsgo.ErrNoResponders)
		}
		return
	}
	var a ack
	if json.Unmarshal(m.Data, &a) != nil || a.Error == nil && (a.Stream != p.cfg.Stream || a.Seq == 0) {
		return // not the stream's: somebody else listens to the subject and answers
	}
	switch {
	case a.Error != nil && p.compare != nil && (a.Error.ErrorCode == jsWrongLast || a.Error.ErrorCode == jsWrongLastToo):
		p.mismatched(token, a.Error)
	case a.Error != nil:
		if s, doubt := judge(a.Error); doubt {
			p.question(token, s, a.Error)
		} else {
			p.settle(token, s.result(a.Error))
		}
	case a.Duplicate:
		p.settle(token, stored(takenBefore, a.Seq))
	default:
		p.acknowledged(token, a.Seq)
	}
}

// API errors that say that the last message of the subject is not the one that was named.
const (
	jsWrongLast    natsgo.ErrorCode = 10071
	jsWrongLastToo natsgo.ErrorCode = 10164
)

func stored(s situation, seq uint64) broker.Result {
	r := s.result(nil)
	r.Position = strconv.FormatUint(seq, 10)
	return r
}

const deniedPublish = `Permissions Violation for Publish to `

// hear takes what the server says about no message in particular.
func (l *link) hear(err error) {
	if errors.Is(err, natsgo.ErrPermissionViolation) {
		if _, quoted, ok := strings.Cut(err.Error(), deniedPublish); ok {
			if subject, bad := strconv.Unquote(quoted); bad == nil {
				l.publisher.denied(l, subject, err)
			}
		}
		return
	}
	if broken := (*net.OpError)(nil); errors.As(err, &broken) && broken.Op == "write" {
		_ = l.nc.ForceReconnect() // half a message may be on the wire: see sendFault
	}
}

// denied answers what was sent to a subject that this user may not publish to.
func (p *Publisher) denied(l *link, subject string, cause error) {
	p.mu.Lock()
	var answers []pending
	for token, f := range p.flights {
		if f.sent && f.link == l && f.subject == subject {
			delete(p.flights, token)
			answers = append(answers, pending{f, permissionDenied.result(cause)})
		}
	}
	p.mu.Unlock()
	p.answerAll(answers)
}
