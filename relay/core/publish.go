package core

import (
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// batch is what was handed to the publisher in one Publish.
type batch struct {
	items []*item
	open  int // not answered
}

// sent is a message in flight, in the order of sending.
type sent struct {
	it     *item
	ticket uint64
	index  int
	at     time.Duration
}

// publish hands over what is ready, as far as the window goes.
func (m *Machine) publish() {
	if m.settleBad > 0 || m.delayed > m.now || m.pauses.stopped() || m.now >= m.leaseEnd-m.rules.LeaseMargin {
		return
	}
	most := m.rules.Messages
	switch m.breaker.state {
	case breakerOpen:
		return
	case breakerClosed:
	case breakerHalf:
		if p := m.breaker.probe; p != nil && p.ticket != 0 && p.awaited(p.ticket) {
			return
		}
		most = 1
	}
	var b batch
	for len(b.items) < most {
		r, ok := m.ready.peek()
		if !ok {
			break
		}
		if r.it.state != ready || r.it.gen != r.gen {
			m.ready.pop()
			continue
		}
		if !m.fits(r.it) {
			break
		}
		m.ready.pop()
		m.send(r.it, &b)
	}
	if len(b.items) < most {
		m.publishFront(&b)
	}
	m.handOver(&b)
}

// fits reports whether the window has room. Its last place is for a message that everything published of its partition
// waits for: were the window full of messages behind such ones, nothing could ever make room. A message larger than the
// whole window goes alone.
func (m *Machine) fits(it *item) bool {
	left := m.rules.Messages - m.window.messages
	return (left > 1 || left == 1 && (it.parked || it.part.front() == it)) &&
		(m.window.messages == 0 || m.window.bytes+it.size() <= m.rules.Bytes)
}

// publishFront gives the last place to a message in front of its partition that is ready, though others are before it. One
// that is too large for what is left goes when nothing else is on its way, or will be settled.
func (m *Machine) publishFront(b *batch) {
	if _, some := m.ready.peek(); !some || m.window.messages >= m.rules.Messages {
		return
	}
	still := len(m.tickets) == 0 && len(b.items) == 0 && m.settling == nil && !m.pending.any()
	for range m.order { // in turn, or one partition could keep the others waiting
		m.front = (m.front + 1) % len(m.order)
		p := m.order[m.front]
		if it := p.front(); it != nil && it.state == ready && (m.fits(it) || still) {
			m.send(it, b)
			return
		}
	}
}

// front is the first undecided message of the partition's first read, which everything behind it waits for.
func (p *part) front() *item {
	for _, r := range p.reads {
		if r.n < len(r.items) {
			return &r.items[r.n]
		}
	}
	return nil
}

func (m *Machine) send(it *item, b *batch) {
	if m.hold(it) || m.refuse(it) {
		return
	}
	it.state = flying
	it.gen++
	if it.at == 0 {
		it.at = m.now
	}
	if it.lane != nil {
		it.lane.flying++
	}
	m.count(it)
	b.items = append(b.items, it)
}

func (m *Machine) envelope(it *item, attempt int) broker.Envelope {
	return broker.Envelope{Record: it.rec, Epoch: it.part.epoch, Lineage: m.rules.Lineage, Attempt: attempt, Relay: m.rules.Relay}
}

func (m *Machine) handOver(b *batch) {
	if len(b.items) == 0 {
		return
	}
	m.ticket++
	b.open = len(b.items)
	m.tickets[m.ticket] = b
	e := Publish{Ticket: m.ticket, Batch: make([]broker.Envelope, len(b.items))}
	for i, it := range b.items {
		it.ticket = m.ticket
		e.Batch[i] = m.envelope(it, it.attempts+1)
		m.inflight.push(sent{it, m.ticket, i, m.now})
	}
	if m.breaker.state == breakerHalf {
		m.breaker.probe = b.items[0]
	}
	m.do(e)
}

// refuse makes a message dead that breaks a rule of its topic, in its turn.
func (m *Machine) refuse(it *item) bool {
	t := m.rules.Topic(it.rec.Topic)
	switch {
	case t.RequireKey && it.rec.Key == "":
		m.dead(it, outbox.ErrKeyRequired.Code, "a rule of the relay asks for a key on topic "+it.rec.Topic, nil)
	case t.MaxPayload > 0 && it.size() > t.MaxPayload:
		m.dead(it, broker.CodeTooLarge, "the payload is larger than the relay's rule for topic "+it.rec.Topic+" allows", nil)
	default:
		return false
	}
	return true
}

// awaited reports whether the item waits for an answer to this ticket.
func (it *item) awaited(ticket uint64) bool {
	return it.ticket == ticket && (it.state == flying || it.slow)
}

func (m *Machine) answered(a Answer) {
	if it := m.forgetTicket(a.Ticket, a.Index); it != nil && it.awaited(a.Ticket) {
		m.resolve(it, a.Result)
	}
}

// forgetTicket returns the item that this answer is for, once: a second answer finds nothing.
func (m *Machine) forgetTicket(ticket uint64, index int) *item {
	b := m.tickets[ticket]
	if b == nil || index < 0 || index >= len(b.items) || b.items[index] == nil {
		return nil
	}
	it := b.items[index]
	b.items[index] = nil
	if b.open--; b.open == 0 {
		delete(m.tickets, ticket)
	}
	return it
}

// resolve does what an outcome asks for.
func (m *Machine) resolve(it *item, r broker.Result) {
	took := m.now - it.at
	it.ticket = 0
	if it.lane != nil {
		it.lane.flying--
	}
	if int(r.Outcome) < len(m.counters.Outcomes) {
		m.counters.Outcomes[r.Outcome]++
	}
	m.breaker.heard(m, it, r.Outcome)
	if r.Outcome != broker.Uncertain {
		it.uncertain = 0
	}
	if l := it.lane; l != nil && m.rules.Pipeline && r.Outcome > broker.Duplicate {
		if l.recover { // it failed because an earlier one of its key did: not its fault
			m.again(it)
			return
		}
		l.recover = l.flying > 0
	}
	switch r.Outcome {
	case broker.Accepted, broker.Duplicate:
		m.succeeded(it, r)
	case broker.Retry:
		m.failed(it, r, took)
	case broker.Rejected:
		m.rejected(it, r, took)
	case broker.Throttled:
		m.delayed = max(m.delayed, m.now+m.throttle(r.After))
		m.again(it)
	case broker.Uncertain:
		m.unanswered(it, r, took)
	default: // Unavailable; what a publisher makes up is its fault, not the message's
		m.again(it)
	}
}

func (m *Machine) throttle(after time.Duration) time.Duration {
	if after <= 0 {
		return m.rules.Breaker.First
	}
	return min(after, m.rules.Retry.Max)
}

// again puts a message back in its place: no attempt is used up.
func (m *Machine) again(it *item) {
	m.uncount(it)
	it.at = 0
	if it.slow { // it is parked, with the next try due: the database has it
		m.endSlow(it)
		return
	}
	it.state = waiting
	if it.lane == nil {
		if it.parked && it.part.leaving {
			m.dropLoose(it)
		} else {
			m.makeReady(it)
		}
		return
	}
	l := it.lane
	if l.shut() && !l.releasing { // and so must what waits behind it, or that would go out when the lane opens again
		m.stayBehind(it)
		m.shutLane(l)
	} else if it.parked && it.part.leaving { // the rest of the line must not overtake it
		m.stayBehind(it)
	} else if m.rules.Pipeline {
		l.recover = true
		l.unready()
	}
	m.next(l)
}

// unanswered: sent, no answer. The third in a row counts as a failed attempt, if others got through meanwhile.
func (m *Machine) unanswered(it *item, r broker.Result, took time.Duration) {
	if it.uncertain == 0 {
		it.through = m.accepted
	}
	it.uncertain++
	if it.uncertain >= 3 && m.accepted > it.through {
		it.uncertain = 0
		m.failed(it, r, took)
		return
	}
	m.again(it)
}

// expire treats what was not answered in time as uncertain, and parks what holds up its partition.
func (m *Machine) expire() {
	for {
		s, ok := m.inflight.peek()
		if !ok {
			return
		}
		if s.it.awaited(s.ticket) {
			if m.now < s.at+m.rules.PublishTimeout {
				break
			}
			m.forgetTicket(s.ticket, s.index)
			m.resolve(s.it, broker.Result{Outcome: broker.Uncertain, Code: broker.CodePublishTimeout, Err: errTimeout})
		}
		m.inflight.pop()
	}
	m.parkSlow()
}

var errTimeout = &outbox.Error{Code: broker.CodePublishTimeout, Detail: "the publisher did not answer in time"}
