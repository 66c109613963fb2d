package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
)

// errClosed: the publisher is closed.
var errClosed = errors.New("webhook: the publisher is closed")

// flight is a message without an answer.
type flight struct {
	batch *batch
	index int
}

// batch is one call of Publish.
type batch struct {
	ctx       context.Context //nolint:containedctx // of each of its requests
	envelopes []broker.Envelope
	done      func(i int, r broker.Result)
	left      int         // messages whose done has not returned
	unwatch   func() bool // ends the watch over its context
	answers   uint64      // Publisher.answers when it came
}

// Publish puts the batch into the queue and returns.
func (p *Publisher) Publish(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) {
	if len(envelopes) == 0 {
		return
	}
	var refusal *broker.Result
	if err := ctx.Err(); err != nil {
		r := notSent.errorf("not sent: %w", err)
		refusal = &r
	} else if !p.enqueue(ctx, envelopes, done) {
		r := closed.errorf("not sent: %w", errClosed)
		refusal = &r
	}
	if refusal != nil {
		for i := range envelopes {
			done(i, *refusal)
		}
	}
}

func (p *Publisher) enqueue(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return false
	}
	b := &batch{ctx: ctx, envelopes: envelopes, done: done, left: len(envelopes), answers: p.answers}
	flights := make([]flight, len(envelopes))
	for i := range flights {
		flights[i] = flight{b, i}
		p.queue = append(p.queue, &flights[i])
	}
	p.open += len(envelopes)
	b.unwatch = context.AfterFunc(ctx, func() { p.expire(b) })
	for n := len(envelopes); n > 0 && p.running < p.cfg.Concurrency; n-- {
		p.running++
		p.group.Go(p.send)
	}
	return true
}

// send is a goroutine that sends one message after the other until none waits.
func (p *Publisher) send() {
	s := sender{publisher: p}
	for f := p.next(); f != nil; f = p.next() {
		if late := p.tooLate(f); late != nil {
			p.answer(f, *late)
			continue
		}
		r, rest := s.post(f)
		p.answer(f, r)
		rest()
	}
}

// next takes the oldest message that waits; nil, and the goroutine is not counted any more, where there is none.
func (p *Publisher) next() *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.running--
		return nil
	}
	f := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return f
}

// answered notes that the endpoint has answered, and how fast it is.
func (p *Publisher) answered(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers++; p.answers == 1 {
		p.usual = took
	}
	p.usual += (took - p.usual) / 8
}

// tooLate is the answer for a message whose time would end before the endpoint's answer: a request that is cut off
// meanwhile would be sent twice.
func (p *Publisher) tooLate(f *flight) *broker.Result {
	deadline, ok := f.batch.ctx.Deadline()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ok || p.answers == f.batch.answers || time.Until(deadline) > 2*p.usual {
		return nil
	}
	r := p.waited(context.DeadlineExceeded)
	return &r
}

// waited is the answer for a message that has only waited too long for its turn, which is no fault of the endpoint's.
func (p *Publisher) waited(cause error) broker.Result {
	return busy.errorf("%d requests are on their way, and the endpoint is slower than messages come: %w", p.cfg.Concurrency, cause)
}

// expire answers what is left of a batch in the queue.
func (p *Publisher) expire(b *batch) {
	cause := context.Cause(b.ctx)
	p.mu.Lock()
	turn := p.answers > b.answers && errors.Is(cause, context.DeadlineExceeded)
	p.mu.Unlock()
	r := notSent.errorf("not sent: %w", cause)
	if turn {
		r = p.waited(cause)
	}
	p.drop(func(f *flight) bool { return f.batch == b }, r)
}

// drop takes what matches out of the queue and answers it.
func (p *Publisher) drop(match func(*flight) bool, r broker.Result) {
	p.mu.Lock()
	var dropped, kept []*flight
	for _, f := range p.queue {
		if match(f) {
			dropped = append(dropped, f)
		} else {
			kept = append(kept, f)
		}
	}
	p.queue = kept
	p.mu.Unlock()
	for _, f := range dropped {
		p.answer(f, r)
	}
}

// answer calls done for a message that was taken out of the queue.
func (p *Publisher) answer(f *flight, r broker.Result) {
	b := f.batch
	b.done(f.index, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	if b.left--; b.left == 0 {
		b.unwatch()
		b.envelopes = nil
	}
	if p.open == 0 && p.closing {
		close(p.idle)
	}
}
