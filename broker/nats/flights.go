package nats

import (
	"context"
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// flight is a message without an answer. The publisher's mutex guards it.
type flight struct {
	batch   *batch
	token   uint64
	index   int
	subject string
	state   state
	sent    bool   // it may be on the wire
	link    *link  // on which it was sent, in which session
	epoch   uint64 // of that link: grows with each reconnect
	early   *broker.Result

	// in compare mode
	id         outbox.ID
	seq        int64
	alone      bool // its subject takes no other message
	lane       *lane
	behind     uint64 // the message of its subject behind which it wants to stand
	high       int64  // the highest onward-seq of its subject with it
	mismatches int
	strangers  int // messages of others that were read for it
}

type state uint8

const (
	queued   state = iota
	building       // the writer reads the envelope: an answer must wait until it has (flight.early)
	sending        // the connection takes it, or says that it does not
	away
	doubtful // waits for a look-up of the stream
)

// batch is one call of Publish.
type batch struct {
	envelopes []broker.Envelope
	done      func(i int, r broker.Result)
	flights   []flight
	deadline  time.Time
	left      int         // messages whose done has not returned
	unwatch   func() bool // ends the watch over its context
}

// Publish puts the batch into the queue of the writer and returns.
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
	n := min(len(envelopes), max(0, p.cfg.MaxPending-len(p.flights)))
	if n == 0 {
		return 0, tooManyPending
	}
	b := &batch{envelopes: envelopes, done: done, flights: make([]flight, n), deadline: time.Now().Add(p.cfg.AckTimeout), left: n}
	b.unwatch = context.AfterFunc(ctx, func() { p.expire(b, context.Cause(ctx)) })
	for i := range b.flights {
		p.token++
		f := &b.flights[i]
		*f = flight{batch: b, token: p.token, index: i}
		p.name(f, &envelopes[i])
		p.flights[f.token] = f
		p.queue.push(f)
	}
	p.batches = append(p.batches, b)
	if p.open == 0 {
		signal(p.busy)
		signal(p.flying)
	}
	p.open += n
	signal(p.work)
	return n, tooManyPending
}

// name finds the subject; where there is none, the writer gives the answer.
func (p *Publisher) name(f *flight, e *broker.Envelope) {
	topic, err := p.wire.Topic(e)
	if err != nil {
		r := templateFailed.result(err)
		f.early = &r
		return
	}
	f.subject = topic
	if p.compare != nil {
		f.id, f.seq = e.ID, e.Seq
		f.subject, f.alone = subjectOf(topic, e)
	}
}

// take removes a flight: whoever gets it answers it. nil: it was answered.
func (p *Publisher) take(token uint64) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeLocked(token)
}

func (p *Publisher) takeLocked(token uint64) *flight {
	f := p.flights[token]
	delete(p.flights, token)
	return f
}

// answer calls done for a flight that was taken.
func (p *Publisher) answer(f *flight, r broker.Result) {
	f.batch.done(f.index, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.release(f)
	if f.batch.left--; f.batch.left == 0 {
		f.batch.unwatch()
		f.batch.envelopes = nil
	}
	if p.open == 0 && p.closing {
		close(p.idle)
	}
}

// settle answers by token, if it still has no answer.
func (p *Publisher) settle(token uint64, r broker.Result) {
	if f := p.take(token); f != nil {
		p.answer(f, r)
	}
}

// pending is an answer to be given outside the lock.
type pending struct {
	flight *flight
	result broker.Result
}

func (p *Publisher) answerAll(answers []pending) {
	for _, a := range answers {
		p.answer(a.flight, a.result)
	}
}

// cut takes a flight whose time is over: with its answer, or nil where the writer must give it.
func (p *Publisher) cut(f *flight, sent, unsent broker.Result) []pending {
	if p.flights[f.token] != f {
		return nil
	}
	if f.state == building {
		if f.early == nil {
			f.early = &unsent
		}
		return nil
	}
	delete(p.flights, f.token)
	if f.sent {
		return []pending{{f, sent}}
	}
	return []pending{{f, unsent}}
}

// expire answers what is left of a batch.
func (p *Publisher) expire(b *batch, cause error) {
	sent := contextEnded.errorf("no answer before the context ended: %w", cause)
	if errors.Is(cause, context.DeadlineExceeded) {
		sent = noAnswer.errorf("no answer: %w", cause)
	}
	unsent := notSent.errorf("not sent: %w", cause)
	p.mu.Lock()
	var answers []pending
	for i := range b.flights {
		answers = append(answers, p.cut(&b.flights[i], sent, unsent)...)
	}
	p.mu.Unlock()
	p.answerAll(answers)
}

// abandon answers everything that is left, because Close may wait no longer.
func (p *Publisher) abandon(cause error) {
	sent := contextEnded.errorf("no answer before the publisher was closed: %w", cause)
	unsent := closed.errorf("not sent before the publisher was closed: %w", cause)
	p.mu.Lock()
	var answers []pending
	for _, f := range p.flights {
		answers = append(answers, p.cut(f, sent, unsent)...)
	}
	p.mu.Unlock()
	p.answerAll(answers)
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
