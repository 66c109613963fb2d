package membroker

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Publisher is the broker's publisher: what a relay holds. It is safe for concurrent use.
type Publisher struct {
	broker *Broker

	mu      sync.Mutex
	closed  bool
	pending int           // messages without an answer
	idle    chan struct{} // closed while pending is 0
}

var _ broker.Publisher = (*Publisher)(nil)

var (
	errClosed      = errors.New("membroker: the publisher is closed")
	errUnavailable = errors.New("membroker: unavailable")
	errThrottled   = errors.New("membroker: throttled")
	errTooLarge    = errors.New("membroker: the payload is larger than MaxBytes")
	errBehind      = errors.New("membroker: an earlier message of its key failed")
	errFenced      = errors.New("membroker: a newer owner of the partition has published")
	errNoAnswer    = errors.New("membroker: the context ended before the answer")
)

// failure is a message of a key that failed, with those behind it that failed for that reason: what comes of the key before all
// their answers are delivered fails too, or it would overtake them.
type failure struct {
	key    string
	ids    map[outbox.ID]bool
	open   int           // answers that are not delivered
	result broker.Result // what those behind it get
}

// Capabilities returns what the configuration says.
func (p *Publisher) Capabilities() broker.Capabilities {
	c := p.broker.cfg
	return broker.Capabilities{Pipeline: c.Pipeline, Positions: c.Positions, Dedup: c.Dedup, MaxBytes: c.MaxBytes}
}

// Check fails while the broker is unavailable.
func (p *Publisher) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.broker.mu.Lock()
	defer p.broker.mu.Unlock()
	if p.broker.unavailable {
		return &outbox.Error{Code: broker.CodeUnavailable, Op: "check membroker", Err: errUnavailable, Hint: "call SetUnavailable(false)"}
	}
	return nil
}

// Publish stores the batch before it returns. Without latency it has answered by then, too.
func (p *Publisher) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	open := p.begin(len(batch))
	answers := make([]answer, 0, len(batch))
	for i := range batch {
		a := answer{index: i, result: broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: errClosed}}
		if open {
			if err := ctx.Err(); err != nil {
				a.result.Err = err
			} else if a = p.broker.offer(&batch[i]); a.panics {
				p.deliver(answers, done)
				p.end(len(batch) - i)
				panic("membroker: injected panic")
			}
		}
		a.index = i
		answers = append(answers, a)
	}
	if deliver := p.broker.cfg.Deliver; deliver != nil {
		for _, a := range answers {
			if !a.stalls {
				deliver(func() { p.deliver([]answer{a}, done) })
			}
		}
		return
	}
	if p.broker.cfg.Latency <= 0 {
		p.deliver(answers, done)
		return
	}
	go p.deliverLater(ctx, answers, done)
}

// answer is a message's answer on its way back.
type answer struct {
	index          int
	result         broker.Result
	stalls, panics bool
	failure        *failure // pipeline: its key fails until this is delivered
}

// deliverLater delivers after the latency; what the context cuts short is Uncertain, for it was sent.
func (p *Publisher) deliverLater(ctx context.Context, answers []answer, done func(i int, r broker.Result)) {
	timer := time.NewTimer(p.broker.cfg.Latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		for i := range answers {
			if answers[i].result.Outcome != broker.Unavailable {
				answers[i].result = broker.Result{Outcome: broker.Uncertain, Code: broker.CodePublishTimeout, Err: errNoAnswer}
			}
		}
	}
	p.deliver(answers, done)
}

func (p *Publisher) deliver(answers []answer, done func(i int, r broker.Result)) {
	for _, a := range answers {
		if a.stalls {
			continue
		}
		done(a.index, a.result)
		p.broker.recover(a.failure)
		p.end(1)
	}
}

func (p *Publisher) begin(n int) (open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == 0 && n > 0 {
		p.idle = make(chan struct{})
	}
	p.pending += n
	return !p.closed
}

func (p *Publisher) end(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending -= n; p.pending == 0 {
		close(p.idle)
	}
}

// Close waits for the answers on their way; a stalled message keeps it until ctx ends. Later messages are Unavailable.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// offer takes one message: the faults first, then what the broker is like.
func (b *Broker) offer(e *broker.Envelope) answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrivals++
	if b.unavailable {
		return answer{result: broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: errUnavailable}}
	}
	if b.throttle > 0 {
		return answer{result: broker.Result{Outcome: broker.Throttled, After: b.throttle, Code: broker.CodeThrottled, Err: errThrottled}}
	}
	if b.fenced(e.Partition, e.Epoch) {
		return answer{result: broker.Result{Outcome: broker.Unavailable, Code: broker.CodePermission, Err: errFenced}}
	}
	if f := b.behind(e); f != nil {
		return answer{result: f.result, failure: f}
	}
	if f := b.fault(e); !f.none() {
		return b.fail(e, f)
	}
	if b.cfg.MaxBytes > 0 && len(e.Payload) > b.cfg.MaxBytes {
		return b.failed(e, broker.Result{Outcome: broker.Rejected, Code: broker.CodeTooLarge, Err: errTooLarge})
	}
	return answer{result: b.accept(e)}
}

func (b *Broker) accept(e *broker.Envelope) broker.Result {
	r := broker.Result{Outcome: broker.Accepted}
	position, duplicate := b.store(b.keep(e))
	if duplicate {
		r.Outcome = broker.Duplicate
	}
	if b.cfg.Positions {
		r.Position = strconv.FormatInt(position, 10)
	}
	return r
}

func (b *Broker) fault(e *broker.Envelope) Fault {
	for _, rule := range b.faults {
		if f := rule(b.arrivals, *e); !f.none() {
			return f
		}
	}
	return Fault{}
}

func (b *Broker) fail(e *broker.Envelope, f Fault) answer {
	switch f.Delivery {
	case Stored:
		b.store(b.keep(e))
	case Late:
		b.late = append(b.late, delayed{b.keep(e), b.last[e.Key], e.Partition})
	case Dropped:
	}
	a := answer{result: f.result()}
	if f.Delivery != Stored && (a.result.Outcome > broker.Duplicate || f.Stall || f.Panic) {
		a = b.failed(e, a.result)
	}
	a.stalls, a.panics = f.Stall, f.Panic
	return a
}

// failed answers a message that was not stored; in a pipeline those of its key behind it will not be either.
func (b *Broker) failed(e *broker.Envelope, r broker.Result) answer {
	a := answer{result: r}
	if !b.cfg.Pipeline || e.Key == "" {
		return a
	}
	switch r.Outcome {
	case broker.Rejected:
		r.Outcome = broker.Retry
	case 0: // a stall or a panic: there is no answer to repeat
		r.Outcome, r.Code = broker.Uncertain, broker.CodePublishTimeout
	default: // the same answer
	}
	r.Err = errBehind
	a.failure = &failure{key: e.Key, ids: map[outbox.ID]bool{e.ID: true}, open: 1, result: r}
	b.failing[e.Key] = a.failure
	return a
}

// behind returns the failure of a message whose key fails at the moment. One that failed before and comes again shows that its
// sender knows: with it the key recovers.
func (b *Broker) behind(e *broker.Envelope) *failure {
	f := b.failing[e.Key]
	if f == nil {
		return nil
	}
	if f.ids[e.ID] {
		delete(b.failing, e.Key)
		return nil
	}
	f.ids[e.ID] = true
	f.open++
	return f
}

// recover ends a key's failure once its answers are delivered.
func (b *Broker) recover(f *failure) {
	if f == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.open--; f.open == 0 && b.failing[f.key] == f {
		delete(b.failing, f.key)
	}
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
