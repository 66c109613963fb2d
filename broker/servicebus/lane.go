package servicebus

import (
	"context"
	"errors"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
)

// idleLane is after how long an entity without messages is closed; the service does it after ten minutes.
const idleLane = 5 * time.Minute

// lane is an entity that messages go to, and the goroutine that sends them there, one after the other, so that the order of
// Publish is the order on the wire. It does not wait for their outcomes.
type lane struct {
	publisher *Publisher
	entity    string
	wake      chan struct{}

	// With the publisher's lock.
	queue queue
	stale *amqp.Sender // the one that was found dead, or silent

	// The goroutine's own.
	link    *link
	session *amqp.Session
	sender  *amqp.Sender // nil: the entity is not open
	renew   time.Time    // when the next token is due; zero: never
	expires time.Time    // when the token ends
	out     broker.Outgoing
	payload []byte
}

// laneOf finds or makes the lane of an entity. The caller has the lock.
func (p *Publisher) laneOf(entity string) *lane {
	l := p.lanes[entity]
	if l == nil {
		l = &lane{publisher: p, entity: entity, wake: make(chan struct{}, 1)}
		p.lanes[entity] = l
		if p.stop.Err() == nil {
			p.group.Go(l.run)
		}
	}
	return l
}

// run sends what comes until the publisher is closed, or nothing has come for a while.
func (l *lane) run() {
	defer l.close()
	p := l.publisher
	idle := time.NewTimer(idleLane)
	defer idle.Stop()
	for {
		if f := l.next(); f != nil {
			l.one(f)
			idle.Reset(idleLane)
			continue
		}
		if l.entity == p.fixed && l.sender == nil {
			_ = l.open() // what is wrong is said to whoever sends something
		}
		select {
		case <-l.wake:
		case <-l.renewalDue():
			l.renewToken()
		case <-idle.C:
			if l.retire() {
				return
			}
			idle.Reset(idleLane)
		case <-p.stop.Done(): // everything has its answer by now
			return
		}
	}
}

// next takes the next message that has no answer yet.
func (l *lane) next() *flight {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	for f := l.queue.pop(); f != nil; f = l.queue.pop() {
		if f.state == queued {
			f.state = building
			return f
		}
	}
	return nil
}

// one sends a message, once the entity is open.
func (l *lane) one(f *flight) {
	if r := l.open(); r != nil {
		l.refuse(f, *r)
		return
	}
	if !l.renew.IsZero() && time.Now().After(l.renew) {
		l.renewToken()
	}
	if l.send(f) {
		return
	}
	if r := l.open(); r != nil { // the service had ended the link before
		l.refuse(f, *r)
		return
	}
	if !l.send(f) {
		l.publisher.conclude(f, false, notSent.errorf("the service ends the link again and again"))
	}
}

// refuse gives a message, and all that wait with it for the entity to be opened, the answer why it was not.
func (l *lane) refuse(f *flight, r broker.Result) {
	l.publisher.conclude(f, false, r)
	for f := l.next(); f != nil; f = l.next() {
		l.publisher.conclude(f, false, r)
	}
}

// open opens the entity where it is not; an answer says why it cannot be.
func (l *lane) open() *broker.Result {
	p := l.publisher
	p.mu.Lock()
	now, fault := p.link, p.fault
	dead := l.sender != nil && (now != l.link || l.stale == l.sender)
	p.mu.Unlock()
	if l.sender != nil && !dead {
		return nil
	}
	l.close()
	if now == nil {
		r := notConnected.errorf("no connection: %w", fault)
		return &r
	}
	ctx, cancel := context.WithTimeout(p.stop, p.dial.options.Timeout)
	defer cancel()
	session, sender, expires, err := now.attach(ctx, p.dial, l.entity)
	if err != nil {
		s := p.judgeAttach(err)
		if s == linkRefused && isOver(err) { // it answers no longer
			now.drop()
		}
		r := s.errorf("%q cannot be opened: %w", l.entity, err)
		return &r
	}
	l.link, l.session, l.sender = now, session, sender
	l.expires, l.renew = expires, renewal(expires)
	if l.entity == p.fixed {
		p.mu.Lock()
		p.limit = sender.MaxMessageSize()
		p.mu.Unlock()
	}
	return nil
}

// close ends the link; what is on its way there is uncertain.
func (l *lane) close() {
	if l.session != nil {
		hangUp(l.session)
	}
	l.link, l.session, l.sender, l.renew = nil, nil, nil, time.Time{}
}

// retire takes the lane out of use, unless something has come meanwhile.
func (l *lane) retire() bool {
	p := l.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.queue.items) > 0 || l.entity == p.fixed {
		return false
	}
	delete(p.lanes, l.entity)
	return true
}

// renewalDue fires when the next token is due.
func (l *lane) renewalDue() <-chan time.Time {
	if l.renew.IsZero() || l.sender == nil {
		return nil
	}
	return time.After(time.Until(l.renew))
}

// renewToken shows the service a new token. One that is refused is tried again before the old one ends, when the service
// ends the link.
func (l *lane) renewToken() {
	ctx, cancel := context.WithTimeout(l.publisher.stop, l.publisher.dial.options.Timeout)
	defer cancel()
	if expires, err := l.link.claim(ctx, l.publisher.dial, l.entity); err == nil {
		l.expires = expires
	}
	l.renew = renewal(l.expires)
}

// send sends a message. It reports false where the service had ended the link before, and nothing was sent.
func (l *lane) send(f *flight) bool {
	p := l.publisher
	m, fault := l.build(&f.batch.envelopes[f.index])
	p.mu.Lock()
	if f.early != nil {
		fault = f.early
	}
	f.state = sending
	p.mu.Unlock()
	if fault != nil {
		p.conclude(f, false, *fault)
		return true
	}
	before := l.link.socket.written.Load()
	receipt, err := l.sender.SendWithReceipt(f.batch.ctx, m, nil)
	if err == nil {
		p.onItsWay(f)
		sender := l.sender
		p.group.Go(func() { l.await(f, sender, receipt) })
		return true
	}
	if tooLarge(err) {
		p.conclude(f, false, aboveKnownLimit.errorf("%w", err))
		return true
	}
	p.mu.Lock()
	l.stale = l.sender // also where a part of the message went out: the rest must not come
	p.mu.Unlock()
	switch untouched := l.link.socket.written.Load() == before; {
	case f.batch.ctx.Err() != nil:
		p.conclude(f, false, noCredit.errorf("%q gives no credit: %w", l.entity, err))
	case untouched && detached(err):
		return false
	default:
		p.conclude(f, true, linkLost.errorf("the link broke while it was sent: %w", err))
	}
	return true
}

// await waits for the outcome of a message.
func (l *lane) await(f *flight, sender *amqp.Sender, receipt amqp.SendReceipt) {
	p := l.publisher
	outcome, err := receipt.Wait(f.batch.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch cause := context.Cause(f.batch.ctx); {
	case err == nil:
		p.settle(f, p.judge(outcome))
	case cause == nil || errors.Is(cause, context.DeadlineExceeded): // dead, or silent
		l.stale = sender
		p.settle(f, linkLost.errorf("the link broke before the answer: %w", err))
	default: // it has its answer
	}
}

// onItsWay notes that a message was sent.
func (p *Publisher) onItsWay(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case f.earlySent != nil:
		p.settle(f, *f.earlySent)
	case f.state == sending:
		f.state = sent
	}
}

// conclude gives a message its answer that somebody had in hand; where its time was over meanwhile, that is the answer.
func (p *Publisher) conclude(f *flight, wasSent bool, r broker.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case f.early != nil && wasSent:
		r = *f.earlySent
	case f.early != nil && r.Outcome != broker.Rejected:
		r = *f.early
	}
	p.settle(f, r)
}
