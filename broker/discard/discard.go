// Package discard takes every message and forgets it: for benchmarks, for dry runs, and for a sink that is to be drained
// into nothing. What it takes is published, as far as the outbox knows, and gone.
package discard

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Publisher takes everything. The zero value works. It is safe for concurrent use.
type Publisher struct {
	messages, bytes atomic.Int64
	closed          atomic.Bool
}

var _ broker.Publisher = (*Publisher)(nil)

var errClosed = errors.New("discard: the publisher is closed")

// NewPublisher returns a publisher.
func NewPublisher() *Publisher { return &Publisher{} }

// CheckURL refuses what is not the address discard:, which has nothing behind it.
func CheckURL(address string) error {
	if address == "discard:" {
		return nil
	}
	return &outbox.Error{
		Code: outbox.ErrConfigInvalid.Code, Op: "discard address", Detail: "something stands beside the scheme",
		Hint: "write discard: and nothing else",
	}
}

// Taken is how many messages, and bytes of their payloads, were forgotten.
func (p *Publisher) Taken() (messages, bytes int64) { return p.messages.Load(), p.bytes.Load() }

// Capabilities: none. Messages are answered before Publish returns, so that a pipeline would gain nothing.
func (p *Publisher) Capabilities() broker.Capabilities { return broker.Capabilities{} }

// Check fails when ctx has ended, or the publisher is closed.
func (p *Publisher) Check(ctx context.Context) error {
	err := ctx.Err()
	if err == nil && p.closed.Load() {
		err = errClosed
	}
	if err == nil {
		return nil
	}
	return &outbox.Error{Code: broker.CodeUnavailable, Op: "check discard", Err: err, Hint: "open another publisher"}
}

// Publish has answered when it returns.
func (p *Publisher) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	err := ctx.Err()
	if p.closed.Load() {
		err = errClosed
	}
	for i := range batch {
		if err != nil {
			done(i, broker.Result{Outcome: broker.Unavailable, Code: broker.CodeUnavailable, Err: err})
			continue
		}
		p.messages.Add(1)
		p.bytes.Add(int64(len(batch[i].Payload)))
		done(i, broker.Result{Outcome: broker.Accepted})
	}
}

// Close ends nothing: later messages are Unavailable.
func (p *Publisher) Close(context.Context) error {
	p.closed.Store(true)
	return nil
}
