package rabbitmq

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inflight"
	"github.com/onwardhq/onward/outbox"
)

// write is the goroutine that sends, one message after the other, so that the order of Publish is the order on each channel.
// Publish itself never waits for a socket.
func (p *Publisher) write() {
	w := &writer{publisher: p}
	for {
		if f, l := p.next(); f != nil {
			w.send(f, l)
			continue
		}
		select {
		case <-p.flights.Work():
		case <-p.flights.Stopped().Done(): // everything has its answer by now
			return
		}
	}
}

// next takes the next message that has no answer yet from the queue, with the connection of this moment.
func (p *Publisher) next() (*inflight.Flight, *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := p.flights.Next(); f != nil; f = p.flights.Next() {
		switch {
		case p.link == nil:
			p.flights.Settle(f, notConnected.errorf("no connection: %w", p.fault))
		case p.link.blocked != "":
			p.flights.Settle(f, blocked.errorf("the server takes no messages: %s", p.link.blocked))
		default:
			return f, p.link
		}
	}
	return nil, nil
}

// writer is what the goroutine reuses from message to message.
type writer struct {
	publisher *Publisher
	payload   []byte
	out       broker.Outgoing
}

// send builds a message, finds its channel, and sends it there.
func (w *writer) send(f *inflight.Flight, l *link) {
	p := w.publisher
	e := f.Envelope()
	m, to, fault := w.build(e, l)

	p.mu.Lock()
	if early := f.Early(); early != nil {
		fault = early
	}
	if fault == nil && p.limit > 0 && len(m.Body) > p.limit {
		r := aboveKnownLimit.errorf("a payload of %d bytes is larger than the server's max_message_size, %d bytes", len(m.Body), p.limit)
		fault = &r
	}
	if fault != nil {
		p.flights.Settle(f, *fault)
		p.mu.Unlock()
		return
	}
	lane := l.laneOf(e, p.mayCloseChannel(f.ID, to, len(m.Body)))
	defer lane.call()
	if !lane.takes() {
		f.Hold()
		lane.held.Push(f)
		p.mu.Unlock()
		return
	}
	f.Sent()
	one := &entry{flight: f, id: m.MessageId, size: len(m.Body), to: to}
	lane.entries = append(lane.entries, one)
	channel := lane.channel
	p.mu.Unlock()

	// From here on f may be answered, and its envelope must not be touched.
	confirm, err := channel.PublishWithDeferredConfirm(to.exchange, to.key, true, false, m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		one.confirm = confirm
		return
	}
	// It may be on the wire in part, so nothing may come behind it; the lane says what became of the others.
	p.flights.Settle(f, connectionLost.errorf("the connection broke while it was sent: %w", err))
	if !channel.IsClosed() {
		l.drop()
	}
}

// build makes the message that goes out from the envelope, which it does not touch afterwards; a fault is its answer.
func (w *writer) build(e *broker.Envelope, l *link) (amqp.Publishing, address, *broker.Result) {
	if err := w.publisher.wire.Encode(e, &w.out); err != nil {
		r := templateFailed.result(err)
		if outbox.CodeOf(err) != r.Code {
			r = badText.result(err)
		}
		return amqp.Publishing{}, address{}, &r
	}
	to, fault := w.publisher.route.of(e, w.out.RoutingKey)
	if fault != nil {
		return amqp.Publishing{}, to, fault
	}
	m := amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: e.ID.String(), Timestamp: e.CreatedAt,
		Type: short(e.Type), CorrelationId: short(e.CorrelationID), ContentType: short(w.out.ContentType),
		Headers: make(amqp.Table, len(w.out.Headers)),
	}
	size := 128 + len(m.Type) + len(m.CorrelationId) + len(m.ContentType) // lengths, flags, id and timestamp are less than 128
	for _, h := range w.out.Headers {
		if fault := checkHeader(h.Name); fault != nil {
			return m, to, fault
		}
		if _, twice := m.Headers[h.Name]; !twice { // ours come first
			m.Headers[h.Name] = h.Value
			size += len(h.Name) + len(h.Value) + 6
		}
	}
	if frame := l.conn.Config.FrameSize; frame > 0 && size > frame {
		r := headersTooLarge.errorf("%d bytes of headers and properties do not fit into a frame of %d bytes", size, frame)
		return m, to, &r
	}
	w.payload = append(w.payload[:0], w.out.Payload...)
	m.Body = w.payload
	return m, to, nil
}

// short is a text that fits into a property, or nothing: the headers have it whole.
func short(text string) string {
	if len(text) > maxShort {
		return ""
	}
	return text
}

// checkHeader refuses what would end the connection, or command the server.
func checkHeader(name string) *broker.Result {
	switch {
	case name == "" || len(name) > maxShort:
		r := badHeader.result(fmt.Errorf("rabbitmq: the name of a header has %d bytes, want 1 to %d", len(name), maxShort))
		return &r
	case name == "CC" || name == "BCC": // sender-selected distribution
		r := reservedHeader.errorf("header %q would send the message elsewhere", name)
		return &r
	}
	return nil
}
