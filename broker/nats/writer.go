package nats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// write is the goroutine that sends, one message after the other, so that the order of Publish is the order on the wire.
// Publish itself never waits for a socket.
func (p *Publisher) write() {
	w := &writer{publisher: p, header: natsgo.Header{}}
	for {
		if f, l, s := p.next(); f != nil {
			w.send(f, l, s)
			continue
		}
		select {
		case <-p.work:
		case <-p.stop.Done(): // everything has its answer by now
			return
		}
	}
}

// next takes the next message that has no answer yet from the queue, with the link and the stream of this moment.
func (p *Publisher) next() (*flight, *link, *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := p.queue.pop(); f != nil; f = p.queue.pop() {
		if p.flights[f.token] == f && (p.compare == nil || f.early != nil || p.admit(f)) {
			f.state = building
			return f, p.link, p.stream
		}
	}
	return nil, nil, nil
}

// writer is what the goroutine reuses from message to message.
type writer struct {
	publisher *Publisher
	header    natsgo.Header
	values    []string
	payload   []byte
	out       broker.Outgoing
	routes    routes
}

func (w *writer) send(f *flight, l *link, s *stream) {
	p, token, subject := w.publisher, f.token, f.subject
	epoch := l.epoch()
	if f.lane != nil {
		p.renew(f, l, epoch)
	}
	m, fault := w.build(f, l)
	why := w.doubt(s, subject)
	known := fault != nil || why == taken

	p.mu.Lock()
	if f.early != nil {
		fault = f.early
	}
	switch {
	case fault != nil:
		delete(p.flights, token)
	case !known:
		f.state = doubtful
	default:
		f.state, f.sent, f.link, f.epoch = sending, true, l, epoch
	}
	p.mu.Unlock()

	switch {
	case fault != nil:
		p.answer(f, *fault)
	case !known:
		p.question(token, why, fmt.Errorf("nats: before subject %q was sent to", subject))
	default: // from here on f may be answered, and must not be touched
		if err := l.nc.PublishMsg(m); err != nil {
			p.settle(token, l.sendFault(err, len(m.Data)))
			return
		}
		p.left(token)
	}
}

// left notes that the connection has taken a message.
func (p *Publisher) left(token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flights[token]; f != nil && f.state == sending {
		f.state = away
	}
}

// build makes the message that goes out from the envelope, which it does not touch afterwards; a fault is its answer.
func (w *writer) build(f *flight, l *link) (*natsgo.Msg, *broker.Result) {
	e := &f.batch.envelopes[f.index]
	if err := checkSubject(f.subject); err != nil {
		r := badSubject.result(err)
		return nil, &r
	}
	if r := w.buildHeader(e, f); r != nil {
		return nil, r
	}
	w.payload = append(w.payload[:0], w.out.Payload...)
	return &natsgo.Msg{Subject: f.subject, Reply: l.inbox + strconv.FormatUint(f.token, 36), Header: w.header, Data: w.payload}, nil
}

// buildHeader fills the header: the broker's slots, then what the format says.
func (w *writer) buildHeader(e *broker.Envelope, f *flight) *broker.Result {
	clear(w.header)
	w.values = w.values[:0]
	if err := w.publisher.wire.Encode(e, &w.out); err != nil {
		r := templateFailed.result(err)
		if outbox.CodeOf(err) != r.Code {
			r = badText.result(err)
		}
		return &r
	}
	w.set(natsgo.MsgIdHdr, e.ID.String())
	w.set(natsgo.ExpectedStreamHdr, w.publisher.cfg.Stream)
	if f.lane != nil {
		w.set(headerExpected, strconv.FormatUint(f.behind, 10))
		w.set(headerHigh, strconv.FormatInt(f.high, 10))
		if w.publisher.wire.Format() != broker.FormatRaw { // the raw format has them; whoever compares reads them
			w.set(headerID, e.ID.String())
			w.set(headerSeq, strconv.FormatInt(e.Seq, 10))
		}
	}
	for _, h := range w.out.Headers {
		name, value := h.Name, h.Value
		if len(name) >= 5 && strings.EqualFold(name[:5], "nats-") {
			r := reservedHeader.errorf("header %q would command the server", name)
			return &r
		}
		if !validHeader(name, value) {
			r := badHeader.errorf("the value of header %q has a line break, or its name cannot be sent", name)
			return &r
		}
		w.set(name, value)
	}
	return nil
}

func (w *writer) set(name, value string) {
	if before, twice := w.header[name]; twice {
		w.header[name] = append(before, value) //nolint:gosec // rare: a header of the message under a name of ours
		return
	}
	n := len(w.values)
	w.values = append(w.values, value)
	w.header[name] = w.values[n : n+1 : n+1]
}

// validHeader reports whether a header arrives as it is. nats.go itself would turn line breaks into blanks.
func validHeader(name, value string) bool {
	if name == "" || strings.IndexByte(value, '\n') >= 0 || strings.IndexByte(value, '\r') >= 0 {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return true
}

// sendFault is the answer for a message that could not be handed to the connection.
func (l *link) sendFault(err error, size int) broker.Result {
	switch {
	case errors.Is(err, natsgo.ErrMaxPayload):
		return aboveMaxPayload.errorf("a payload of %d bytes with its headers is larger than max_payload, %d bytes", size, l.nc.MaxPayload())
	case errors.Is(err, natsgo.ErrBadSubject):
		return badSubject.result(err)
	case errors.Is(err, natsgo.ErrBadHeaderMsg):
		return badHeader.result(err)
	case errors.Is(err, natsgo.ErrReconnectBufExceeded), errors.Is(err, natsgo.ErrConnectionClosed),
		errors.Is(err, natsgo.ErrConnectionDraining), errors.Is(err, natsgo.ErrHeadersNotSupported):
		return notConnected.errorf("no connection: %w", err)
	}
	// The socket took part of it: what comes after would be read as the rest of this message.
	_ = l.nc.ForceReconnect()
	return connectionLost.errorf("the connection broke while it was sent: %w", err)
}

// doubt says why a message should not be sent before the stream was looked up, or taken.
func (w *writer) doubt(s *stream, subject string) situation {
	switch {
	case s == nil && w.publisher.compare != nil:
		return unseen
	case s != nil && s.unsafe != nil:
		return unsafe
	case !w.routes.known(s, subject):
		return unroutable
	}
	return taken
}

// routes remembers which topics the stream takes, so that a topic without a place is not sent to strangers who listen
// to its subject. It forgets all when the stream is looked up again.
type routes struct {
	stream *stream
	topics map[string]bool
}

const maxRoutes = 10_000

// known reports whether the stream takes the topic, as far as is known.
func (r *routes) known(s *stream, topic string) bool {
	if s == nil {
		return true // the server will say
	}
	if s != r.stream || len(r.topics) >= maxRoutes {
		r.stream, r.topics = s, map[string]bool{}
	}
	takes, ok := r.topics[topic]
	if !ok {
		takes = covers(s.Config.Subjects, topic)
		r.topics[topic] = takes
	}
	return takes
}
