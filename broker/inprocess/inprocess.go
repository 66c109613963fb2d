// Package inprocess hands messages to a Go function: a bus within the process, or a way to a destination that no other publisher
// knows. The relay runs in the service then, beside the function (package relay).
package inprocess

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Handler takes one message. Nil means that what it stands for is done, for good: the message is published, and does not come again.
// It must not change the message, nor keep it after it has returned.
//
// Messages of one key come one after the other, in order, each when the one before it was taken; those of different keys come at once,
// on goroutines of their own. A message may come twice: after a crash, after an error, or when ctx ended before it was answered. What
// must happen once goes by the message's ID (package inbox, where there is a database).
//
// An error is tried again, as the sink's retry says, and uses up an attempt; meanwhile the later messages of its key wait. Reject,
// Unavailable and Throttle say something else about it. A code of an *outbox.Error among its causes is the one that people see, or else
// onward/handler-failed. A panic counts as an error.
type Handler func(ctx context.Context, m broker.Envelope) error

// DefaultConcurrency is how many messages a publisher hands over at once where nothing else is said.
const DefaultConcurrency = 16

// Config says how a Publisher works. The zero value is good.
type Config struct {
	// Concurrency is how many messages are with the handler at once; 0: DefaultConcurrency. Never two of one key.
	Concurrency int
	// Check says whether the handler could take a message now, for the start of the relay and after Unavailable; nil: it always can.
	Check func(ctx context.Context) error
}

// CodeHandlerFailed is the code of an error that has none of its own.
const CodeHandlerFailed outbox.Code = "onward/handler-failed"

// Publisher calls a Handler. It is safe for concurrent use.
type Publisher struct {
	handler Handler
	check   func(ctx context.Context) error
	slots   chan struct{}

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var _ broker.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher that calls the handler.
func NewPublisher(h Handler, c Config) (*Publisher, error) {
	var faults []error
	if h == nil {
		faults = append(faults, errors.New("there is no handler"))
	}
	if c.Concurrency < 0 {
		faults = append(faults, fmt.Errorf("the concurrency is %d: want 1 or more, or 0 for %d", c.Concurrency, DefaultConcurrency))
	}
	if len(faults) > 0 {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "make a publisher of a function", Err: errors.Join(faults...)}
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.Check == nil {
		c.Check = func(context.Context) error { return nil }
	}
	return &Publisher{handler: h, check: c.Check, slots: make(chan struct{}, c.Concurrency)}, nil
}

// verdict is an error that says what is to become of its message.
type verdict struct {
	error
	broker.Result
}

func (v *verdict) Unwrap() error { return v.error }

// Reject says that the message will never be taken: it becomes a dead letter at once.
func Reject(err error) error {
	return &verdict{err, broker.Result{Outcome: broker.Rejected, Code: broker.CodeRejected}}
}

// Unavailable says that nothing can be taken now: the sink stops, asks Config.Check now and then, and goes on. It uses up no attempt.
func Unavailable(err error) error {
	return &verdict{err, broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable}}
}

// Throttle says that it is too much for now: the sink waits so long (0: as it sees fit), and goes on. It uses up no attempt.
func Throttle(err error, after time.Duration) error {
	return &verdict{err, broker.Result{Outcome: broker.Throttled, Code: broker.CodeThrottled, After: after}}
}

// Capabilities: none. A function answers for each message, and knows nothing of those before it.
func (p *Publisher) Capabilities() broker.Capabilities { return broker.Capabilities{} }

// Check asks Config.Check.
func (p *Publisher) Check(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = p.check(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		err = errClosed
	}
	if err == nil {
		return nil
	}
	return &outbox.Error{Code: broker.CodeUnavailable, Op: "check the handler", Err: err, Hint: "the sink goes on by itself when its check is good again"}
}

var errClosed = errors.New("the publisher is closed")

// Publish calls the handler with each message.
func (p *Publisher) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	for i := range batch {
		if !p.begin() {
			done(i, broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: errClosed})
			continue
		}
		go func() {
			defer p.running.Done()
			done(i, p.take(ctx, batch[i]))
		}()
	}
}

func (p *Publisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Add(1)
	return true
}

func (p *Publisher) take(ctx context.Context, m broker.Envelope) broker.Result {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: err} // it was not sent
	}
	err := p.call(ctx, m)
	var said *verdict
	switch {
	case err == nil:
		return broker.Result{Outcome: broker.Accepted}
	case errors.As(err, &said):
		said.Result.Err = err
		return said.Result
	case ctx.Err() != nil: // what it has done until then is not known
		return broker.Result{Outcome: broker.Uncertain, Code: broker.CodeUnconfirmed, Err: err}
	}
	r := broker.Result{Outcome: broker.Retry, Code: outbox.CodeOf(err), Err: err}
	if r.Code == "" {
		r.Code = CodeHandlerFailed
	}
	return r
}

func (p *Publisher) call(ctx context.Context, m broker.Envelope) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &outbox.Error{Code: broker.CodePanic, Op: "handle", Detail: fmt.Sprintf("the handler panicked: %v", v), Err: errors.New(string(debug.Stack()))}
		}
	}()
	return p.handler(ctx, m)
}

// Close waits until the handler has answered for what it has, or ctx ends; later messages are Unavailable.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
