package servicebus

import (
	"context"
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// flight is a message on its way. The publisher's mutex guards it.
type flight struct {
	batch *batch
	index int
	id    outbox.ID
	state state

	early, earlySent *broker.Result // what its time being over means if it was not sent, and if it was
}

type state uint8

const (
	queued   state = iota
	building       // somebody reads the envelope: an answer must wait (flight.early)
	sending        // the client has a copy: an answer waits a little for what it says, because that is more exact
	sent           // it may be on the wire
	over           // it has its answer
)

// batch is one call of Publish.
type batch struct {
	envelopes []broker.Envelope
	done      func(i int, r broker.Result)
	flights   []flight
	ctx       context.Context // has no deadline: it would be that of the socket
	cancel    context.CancelCauseFunc
	deadline  time.Time
	over      time.Time   // when its time was over; zero: not yet
	left      int         // messages whose done has not returned
	unwatch   func() bool // ends the watch over its context
}

// Publish puts the batch into the queue and returns.
func (p *Publisher) Publish(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) {
	if len(envelopes) == 0 {
		return
	}
	n, refusal := 0, notSent
	if ctx.Err() == nil {
		n, refusal = p.enqueue(ctx, envelopes, done)
	}
	for i := n; i < len(envelopes); i++ {
		done(i, refusal.errorf("not sent: %s", verdicts[refusal].means))
	}
}

// enqueue takes as many messages as there is room for, from the first, and says why not more.
func (p *Publisher) enqueue(ctx context.Context, envelopes []broker.Envelope, done func(i int, r broker.Result)) (int, situation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return 0, closed
	}
	n := min(len(envelopes), max(0, p.cfg.MaxPending-p.pending))
	if n == 0 {
		return 0, tooManyPending
	}
	b := &batch{envelopes: envelopes, done: done, flights: make([]flight, n), deadline: time.Now().Add(p.cfg.AckTimeout), left: n}
	b.ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	b.unwatch = context.AfterFunc(ctx, func() { p.expire(b, context.Cause(ctx)) })
	for i := range b.flights {
		b.flights[i] = flight{batch: b, index: i, id: envelopes[i].ID}
		p.queue.push(&b.flights[i])
	}
	p.batches = append(p.batches, b)
	if p.open == 0 {
		signal(p.busy)
	}
	p.open += n
	p.pending += n
	signal(p.work)
	return n, tooManyPending
}

// answer is what a flight gets from the goroutine that gives answers. Nobody else calls done once a flight has begun: a done
// that takes its time must not keep those waiting who listen to the server, whose client drops what nobody takes.
type answer struct {
	flight *flight
	result broker.Result
}

// settle gives a flight its answer, once. The caller has the lock.
func (p *Publisher) settle(f *flight, r broker.Result) {
	if f.state == over {
		return
	}
	f.state = over
	p.pending--
	p.answers = append(p.answers, answer{f, r})
	signal(p.answered)
}

// giveAnswers calls done.
func (p *Publisher) giveAnswers() {
	stop := p.stop.Done()
	for {
		p.mu.Lock()
		answers := p.answers
		p.answers = nil
		ended := p.stop.Err() != nil && p.open == 0
		p.mu.Unlock()
		for _, a := range answers {
			p.give(a)
		}
		if len(answers) > 0 {
			continue
		}
		if ended {
			return
		}
		select {
		case <-p.answered:
		case <-stop:
			stop = nil // from here on only what is left
		}
	}
}

func (p *Publisher) give(a answer) {
	b := a.flight.batch
	b.done(a.flight.index, a.result)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	if b.left--; b.left == 0 {
		b.unwatch()
		b.cancel(nil)
		b.envelopes = nil
	}
	if p.open == 0 && p.closing {
		close(p.idle)
	}
}

// cut answers a flight whose time is over, or leaves that to whoever has it. The caller has the lock.
func (p *Publisher) cut(f *flight, whenSent, whenNot broker.Result) {
	switch f.state {
	case sent:
		p.settle(f, whenSent)
	case queued:
		p.settle(f, whenNot)
	case building, sending:
		if f.early == nil {
			f.early, f.earlySent = &whenNot, &whenSent
		}
	case over:
	}
}

// expire answers what is left of a batch.
func (p *Publisher) expire(b *batch, cause error) {
	whenSent := contextEnded.errorf("no answer before the context ended: %w", cause)
	if errors.Is(cause, context.DeadlineExceeded) {
		whenSent = noAnswer.errorf("no answer: %w", cause)
	}
	whenNot := notSent.errorf("not sent: %w", cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range b.flights {
		p.cut(&b.flights[i], whenSent, whenNot)
	}
	p.isLate(b, cause)
}

// isLate has the client told that the time of a batch is over, and the watch look at what it has in its hands. The caller has the
// lock.
func (p *Publisher) isLate(b *batch, cause error) {
	b.cancel(cause)
	if b.over.IsZero() && b.left > 0 {
		b.over = time.Now()
		p.late = append(p.late, b)
	}
}

// abandon answers everything that is left, because Close may wait no longer.
func (p *Publisher) abandon(cause error) {
	whenSent := contextEnded.errorf("no answer before the publisher was closed: %w", cause)
	whenNot := closed.errorf("not sent before the publisher was closed: %w", cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.batches {
		for i := range b.flights {
			p.cut(&b.flights[i], whenSent, whenNot)
		}
		p.isLate(b, cause)
	}
}

// queue is a first-in-first-out list of what is to be sent.
type queue struct {
	items []*flight
	head  int
}

func (q *queue) push(f *flight) { q.items = append(q.items, f) }

// pop returns nil when the queue is empty.
func (q *queue) pop() *flight {
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
		return nil
	}
	f := q.items[q.head]
	q.items[q.head] = nil
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return f
}

// signal wakes whoever waits on c, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
