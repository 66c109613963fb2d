package watermill

import (
	"bytes"
	"context"
	"runtime/debug"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onwardhq/onward/broker"
)

// batch is one call of Publish.
type batch struct {
	ctx     context.Context // that of Publish, or shorter: until Close waits no longer
	done    func(i int, r broker.Result)
	flights []flight
	left    int // messages whose done has not returned
	release func()
}

// flight is a message on its way. The publisher's mutex guards what changes.
type flight struct {
	batch   *batch
	index   int
	id      string
	topic   string
	message *message.Message // nil after it was answered
	lane    *lane
	sent    bool           // Watermill's Publish was called with it
	over    bool           // it has its answer
	doomed  *broker.Result // its answer: an earlier one of its key failed
}

// lane is what waits for one key: Watermill's Publish is never called for a message before its call for the one before has
// returned, whatever that one was answered meanwhile. A message without a key has a lane of its own.
type lane struct {
	key        string
	queue      []*flight
	unanswered int // their done has not returned
	// With KeepsOrder, once a message has failed: what those behind it get, and the ids of all these, until one of them comes
	// again, which the relay does when it has all their answers, or until all were answered.
	failing *broker.Result
	failed  map[string]bool
}

// Publish calls Watermill's Publish with each message, on other goroutines.
func (p *Publisher) Publish(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) {
	b := &batch{done: done, flights: make([]flight, len(envelopes))}
	var cancel context.CancelCauseFunc
	b.ctx, cancel = context.WithCancelCause(ctx)
	unstop := context.AfterFunc(p.stop, func() { cancel(errClosed) })
	b.release = func() {
		unstop()
		cancel(nil)
	}
	refused := map[int]broker.Result{}
	var out broker.Outgoing
	keys := make([]string, len(envelopes))
	for i := range envelopes { // before any is on its way: after its answer the envelope is the relay's again
		f := &b.flights[i]
		f.batch, f.index, f.id, keys[i] = b, i, envelopes[i].ID.String(), envelopes[i].Record.Key
		if ctx.Err() != nil {
			refused[i] = notSent.errorf("not sent: %w", context.Cause(ctx))
		} else if err := p.wire.Encode(&envelopes[i], &out); err != nil {
			refused[i] = broker.Refuse(err)
		} else {
			f.topic, f.message = out.Topic, p.written(b.ctx, f.id, &out)
		}
	}
	if !p.enter(b, keys, refused) {
		b.release()
		for i := range envelopes {
			done(i, closed.result(errClosed))
		}
		return
	}
	for i, r := range refused {
		p.answer(&b.flights[i], r, r)
	}
	if len(envelopes) == 0 {
		b.release()
	}
}

// written is the message as Watermill has it. The payload is copied: a publisher may keep what it was given.
func (p *Publisher) written(ctx context.Context, id string, out *broker.Outgoing) *message.Message {
	payload := out.Payload
	if p.wire.Format() != broker.FormatStructured {
		payload = bytes.Clone(payload)
	}
	m := message.NewMessage(id, payload)
	for _, h := range out.Headers {
		m.Metadata.Set(h.Name, h.Value)
	}
	m.SetContext(ctx)
	return m
}

// enter puts the batch into its lanes, unless the publisher is closed.
func (p *Publisher) enter(b *batch, keys []string, refused map[int]broker.Result) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	unwatch, release := context.AfterFunc(b.ctx, func() { p.expire(b) }), b.release // it begins when the lock is free
	b.release = func() {
		unwatch()
		release()
	}
	b.left = len(b.flights)
	p.open += b.left
	for i := range b.flights {
		f := &b.flights[i]
		f.lane = p.lanes[keys[i]]
		fresh := f.lane == nil
		if fresh {
			f.lane = &lane{key: keys[i]}
			if keys[i] != "" {
				p.lanes[keys[i]] = f.lane
			}
		}
		l := f.lane
		l.unanswered++
		l.queue = append(l.queue, f)
		if l.failed[f.id] {
			l.recover()
		}
		if r, is := refused[i]; is {
			p.fail(f, r)
		} else if l.failing != nil {
			f.doomed, l.failed[f.id] = l.failing, true
		}
		if fresh {
			go p.run(l)
		}
	}
	return true
}

// fail lets what is behind a message that failed fail as well. The caller has the lock.
func (p *Publisher) fail(f *flight, r broker.Result) {
	l := f.lane
	if !p.cfg.KeepsOrder || r.Outcome <= broker.Duplicate {
		return
	}
	if l.failing != nil {
		l.failed[f.id] = true
		return
	}
	next := following(r)
	l.failing, l.failed = &next, map[string]bool{f.id: true}
	for _, later := range l.queue[slices.Index(l.queue, f)+1:] { // all of it, where f has left the queue
		later.doomed, l.failed[later.id] = l.failing, true
	}
}

// following is the answer for what was not sent because an earlier message of its key failed. What is behind a refused message must
// not look as if the broker took nothing.
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

func (l *lane) recover() { l.failing, l.failed = nil, nil }

// run is the goroutine of a lane.
func (p *Publisher) run(l *lane) {
	for {
		p.mu.Lock()
		if len(l.queue) == 0 {
			if p.lanes[l.key] == l {
				delete(p.lanes, l.key)
			}
			p.mu.Unlock()
			return
		}
		f := l.queue[0]
		l.queue[0], l.queue = nil, l.queue[1:]
		over, doomed, m := f.over, f.doomed, f.message
		p.mu.Unlock()
		switch {
		case over || m == nil: // refused
		case doomed != nil:
			p.answer(f, *doomed, *doomed)
		default:
			p.send(f, m)
		}
	}
}

// send calls Watermill's Publish once there is a slot, and waits until it has returned, although the message may have its answer
// earlier: what comes late must not come behind what is sent after it.
func (p *Publisher) send(f *flight, m *message.Message) {
	ctx := f.batch.ctx
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return // expire answers
	}
	p.mu.Lock()
	cut := f.over
	f.sent = !cut
	p.mu.Unlock()
	if cut {
		return
	}
	r := p.resultOf(ctx, p.call(f.topic, m))
	p.answer(f, r, r)
}

func (p *Publisher) call(topic string, m *message.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return p.to.Publish(topic, m)
}

// answer gives a flight its answer, once.
func (p *Publisher) answer(f *flight, whenSent, whenNot broker.Result) {
	b, r := f.batch, whenNot
	p.mu.Lock()
	if f.over {
		p.mu.Unlock()
		return
	}
	if f.sent {
		r = whenSent
	}
	f.over, f.message = true, nil
	p.fail(f, r)
	p.mu.Unlock()

	b.done(f.index, r)

	p.mu.Lock()
	defer p.mu.Unlock()
	if f.lane.unanswered--; f.lane.unanswered == 0 {
		f.lane.recover()
	}
	if b.left--; b.left == 0 {
		b.release()
	}
	if p.open--; p.open == 0 && p.closed {
		close(p.idle)
	}
}

// expire answers what is left of a batch whose context has ended.
func (p *Publisher) expire(b *batch) {
	cause := context.Cause(b.ctx)
	whenSent, whenNot := ended(cause).errorf("Publish has not returned: %w", cause), notSent.errorf("not sent: %w", cause)
	for i := range b.flights {
		p.answer(&b.flights[i], whenSent, whenNot)
	}
}
