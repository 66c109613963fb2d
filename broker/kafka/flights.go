package kafka

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// call is one call of Publish.
type call struct {
	done    func(i int, r broker.Result)
	flights []flight
	left    int // without an answer
	unwatch func()
}

// flight is a message without an answer. The publisher's mutex guards it; its body never changes.
type flight struct {
	call  *call
	index int
	id    outbox.ID
	key   string // of the message: its order
	topic string // and where it goes, by the sink's templates
	to    string // the record's key
	bad   error  // it cannot be written
	body  []byte // of its record; the envelope itself is not kept
	at    int64  // when the message was created, in milliseconds
	line  *line  // nil: without a key, in no order
	state state
	waits bool   // for its topic
	lane  *lane  // once it is queued
	batch *batch // with which it is sent

	partition int          // of the outbox
	tx        *transaction // in which it is sent
}

// mayBeStored reports whether nobody knows yet that the flight is not stored.
func (f *flight) mayBeStored() bool {
	return f.batch != nil && f.batch.mayBeStored() || f.tx != nil && f.tx.committing
}

type state uint8

const (
	held   state = iota // until its topic is known, or the messages of its key in another partition are through
	queued              // of a lane
	away                // in a batch
	over                // it has its answer
)

// line is what has no answer of a key, in the order of Publish. All that is on its way goes to one lane, because two partitions
// know no order between them; and once one message has failed, all behind it fail, until those come again or all are answered.
type line struct {
	flights    []*flight
	placed     int // so many of them, the first, are in the lane
	lane       *lane
	unanswered int // their done has not returned
	failing    *broker.Result
	failed     map[outbox.ID]bool
}

// pending is an answer to be given outside the lock.
type pending struct {
	flight *flight
	result broker.Result
}

// Publish encodes the batch, puts it into the queues of its partitions and returns.
func (p *Publisher) Publish(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) {
	if len(envelopes) == 0 {
		return
	}
	if ctx.Err() != nil {
		refuseAll(len(envelopes), done, notSent)
		return
	}
	c := p.newCall(envelopes, done)
	p.mu.Lock()
	if p.closing {
		p.release()
		refuseAll(len(envelopes), done, closed)
		return
	}
	p.open += len(c.flights)
	p.calls[c] = struct{}{}
	p.now = time.Now()
	for i := range c.flights {
		p.enqueue(&c.flights[i])
	}
	if c.left > 0 {
		timed, cancel := context.WithTimeout(ctx, p.cfg.AckTimeout)
		stop := context.AfterFunc(timed, func() { p.expire(c, timed) })
		c.unwatch = func() { stop(); cancel() }
	}
	p.release()
}

func refuseAll(n int, done func(i int, r broker.Result), s situation) {
	for i := range n {
		done(i, s.errorf("not sent: %s", verdicts[s].means))
	}
}

// newCall encodes the messages, all into one piece of memory.
func (p *Publisher) newCall(envelopes []broker.Envelope, done func(i int, r broker.Result)) *call {
	c := &call{done: done, flights: make([]flight, len(envelopes)), left: len(envelopes)}
	size := 0
	for i := range envelopes {
		size += len(envelopes[i].Payload) + 2*len(envelopes[i].Key) + len(envelopes[i].Type) + len(envelopes[i].Topic) + 400
	}
	all := make([]byte, 0, size)
	var out broker.Outgoing
	for i := range envelopes {
		e, f := &envelopes[i], &c.flights[i]
		*f = flight{call: c, index: i, id: e.ID, partition: e.Partition, key: e.Key, at: e.CreatedAt.UnixMilli()}
		if f.bad = p.wire.Encode(e, &out); f.bad != nil {
			continue
		}
		start := len(all)
		all = appendBody(all, &out, p.cfg.Tombstone && len(e.Payload) == 0)
		f.topic, f.to, f.body = out.Topic, out.Key, all[start:len(all):len(all)]
	}
	return c
}

// enqueue puts a flight into its line and as far on its way as it can go.
func (p *Publisher) enqueue(f *flight) {
	p.pending++
	if f.key != "" {
		l := p.lines[f.key]
		if l == nil {
			l = &line{}
			p.lines[f.key] = l
		}
		f.line = l
		l.flights = append(l.flights, f)
		l.unanswered++
		if l.failing != nil && l.failed[f.id] { // its sender has heard of the failure
			l.failing, l.failed = nil, nil
		}
		if l.failing != nil {
			p.fail(f, *l.failing)
			return
		}
	}
	switch err := checkTopic(f.topic); {
	case errors.Is(f.bad, outbox.ErrFieldInvalid):
		p.fail(f, badText.result(f.bad))
	case f.bad != nil:
		p.fail(f, templateFailed.result(f.bad))
	case err != nil:
		p.fail(f, badTopic.result(err))
	case p.pending > p.cfg.MaxPending:
		p.fail(f, tooManyPending.errorf("%d messages wait for their answers", p.cfg.MaxPending))
	case p.tx != nil:
		p.tx.queue = append(p.tx.queue, f)
		p.tx.nudge()
	case f.line != nil:
		p.advance(f.line)
	default:
		p.place(f)
	}
}

// advance puts what it can of a line into its lane.
func (p *Publisher) advance(l *line) {
	for l.placed < len(l.flights) {
		if !p.place(l.flights[l.placed]) {
			return
		}
		l.placed++
	}
}

// place puts a flight into its lane, if it may go there now.
func (p *Publisher) place(f *flight) bool {
	t := p.topic(f.topic)
	if !t.known {
		if !f.waits {
			f.waits = true
			t.waiting = append(t.waiting, f)
		}
		p.want(t)
		return false
	}
	to := t.laneOf(p, f.to)
	if l := f.line; l != nil && l.placed > 0 && l.lane != to {
		return false // when those before it are through
	}
	if size := sizeAlone(f.body); t.limit > 0 && size > t.limit {
		p.fail(f, tooLarge.errorf("the record comes to %d bytes; topic %s takes %d", size, f.topic, t.limit))
		return false
	}
	if f.line != nil {
		f.line.lane = to
	}
	f.state, f.lane = queued, to
	to.queue = append(to.queue, f)
	p.list(to)
	return true
}

// end takes a flight out of everything, with its answer.
func (p *Publisher) end(f *flight, r broker.Result) {
	if f.state == queued {
		f.lane.dead++
		f.lane.tidy()
	}
	f.state = over
	p.pending--
	p.answers = append(p.answers, pending{f, r})
	if l := f.line; l != nil {
		i := slices.Index(l.flights, f)
		if i == 0 {
			l.flights[0] = nil
			l.flights = l.flights[1:]
		} else {
			l.flights = slices.Delete(l.flights, i, i+1)
		}
		if i < l.placed {
			l.placed--
		}
	}
	if f.call.left--; f.call.left == 0 {
		delete(p.calls, f.call)
		if f.call.unwatch != nil {
			f.call.unwatch()
		}
	}
	if b := f.batch; b != nil {
		if b.live--; b.live == 0 {
			p.abandon(b)
		}
	}
}

// fail answers a flight that failed, and all behind it of its key.
func (p *Publisher) fail(f *flight, r broker.Result) {
	l := f.line
	if l == nil {
		p.end(f, r)
		return
	}
	tail := slices.Clone(l.flights[slices.Index(l.flights, f):])
	next := following(r)
	l.failing = &next
	if l.failed == nil {
		l.failed = map[outbox.ID]bool{}
	}
	for _, g := range tail {
		l.failed[g.id] = true
		switch {
		case g == f:
			p.end(g, r)
		case g.mayBeStored():
			p.end(g, contextEnded.errorf("an earlier message of its key failed: %w", r.Err))
		default:
			p.end(g, next)
		}
	}
}

// following is the answer for what was not sent because an earlier message of its key failed. A refused message must not look
// as if the broker took nothing.
func following(r broker.Result) broker.Result {
	switch r.Outcome {
	case broker.Rejected, broker.Retry:
		return behind.errorf("not sent: an earlier message of its key failed: %w", r.Err)
	case broker.Uncertain:
		return notSent.errorf("not sent: an earlier message of its key has no answer: %w", r.Err)
	default:
		return r
	}
}

// expire answers what is left of a call whose time is over.
func (p *Publisher) expire(c *call, ctx context.Context) { //nolint:revive // the context has ended: it is what is told
	p.mu.Lock()
	defer p.release()
	p.expireLocked(c, context.Cause(ctx))
}

func (p *Publisher) expireLocked(c *call, cause error) {
	for i := range c.flights {
		f := &c.flights[i]
		if f.state == over {
			continue
		}
		switch b := f.batch; {
		case !f.mayBeStored():
			p.fail(f, notSent.errorf("not sent: %w", p.obstacle(f, cause)))
		case b != nil && b.ambiguous:
			p.fail(f, b.why.result(b.cause))
		case errors.Is(cause, context.DeadlineExceeded):
			p.fail(f, noAnswer.errorf("no answer: %w", cause))
		default:
			p.fail(f, contextEnded.errorf("no answer: %w", cause))
		}
	}
}

// obstacle is why a flight could not be sent until now, as far as it is known.
func (p *Publisher) obstacle(f *flight, cause error) error {
	if f.lane != nil && f.lane.trouble.cause != nil {
		return errors.Join(cause, f.lane.trouble.cause)
	}
	if t := p.topics[f.topic]; t != nil && !t.known && t.trouble.cause != nil {
		return errors.Join(cause, t.trouble.cause)
	}
	return cause
}

// release ends what was begun by locking the mutex: it sends what became ready, and gives the answers that are due. One
// goroutine at a time gives them, in the order in which they came about.
func (p *Publisher) release() {
	p.pump()
	if p.answering {
		p.mu.Unlock()
		return
	}
	p.answering = true
	for len(p.answers) > 0 {
		answers := p.answers
		p.answers = nil
		p.mu.Unlock()
		for _, a := range answers {
			a.flight.call.done(a.flight.index, a.result)
		}
		p.mu.Lock()
		p.answered(answers)
	}
	p.answering = false
	p.mu.Unlock()
}

// answered forgets what only mattered until its done had returned.
func (p *Publisher) answered(answers []pending) {
	for _, a := range answers {
		if l := a.flight.line; l != nil {
			if l.unanswered--; l.unanswered == 0 {
				delete(p.lines, a.flight.key)
			}
		}
	}
	if p.open -= len(answers); p.open == 0 && p.closing {
		p.idleOnce.Do(func() { close(p.idle) })
	}
}
