// Package watermill joins Onward and Watermill (github.com/ThreeDotsLabs/watermill), both ways. NewPublisher makes any
// message.Publisher of Watermill the destination of a sink, and with it every broker that Watermill has a module for.
// NewTxPublisher is a message.Publisher that writes into the outbox, within the caller's transaction.
package watermill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// DefaultConcurrency is how many calls of Watermill's Publish run at once where nothing else is said.
const DefaultConcurrency = 16

// Config says how a Publisher works. The zero value is good.
type Config struct {
	// Concurrency is how many calls of Watermill's Publish run at once; 0: DefaultConcurrency. Never two for one key.
	Concurrency int
	// KeepsOrder says of Watermill's publisher that messages which are published one after the other arrive in that order,
	// and that Publish returns nil only when the broker has the message. Then several messages of a key are handed over at
	// once; they go out one after the other still, and if one fails, those behind it are not sent. Without it each message of
	// a key waits until the relay has the answer for the one before. An untrue claim breaks the order of a key.
	KeepsOrder bool
	// Outcome says what an error of Watermill's Publish means for its message; 0 leaves it to the publisher: Unavailable where
	// a connection could not be made, Uncertain otherwise. Errors have no classes in Watermill, so only who knows the publisher
	// behind can tell what will never be taken (Rejected) from what may be taken later (Retry). Nil: always 0.
	Outcome func(err error) broker.Outcome
	// Check says whether the destination takes messages now, for the start of the relay and as the breaker's probe; nil: it is
	// taken to, because Watermill has nothing to ask.
	Check func(ctx context.Context) error
	// Style is how CloudEvents' attributes are named and written; choose that of the broker behind Watermill. 0:
	// broker.StyleRedis (ce-id and so on, values as they are).
	Style broker.Style
	// Wire says how messages are written; the zero value is the raw format. Topic is a template of Watermill's topic. Watermill
	// has no other names: Key and RoutingKey are refused.
	Wire broker.WireConfig
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	for _, f := range c.Wire.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if c.Wire.Key != "" || c.Wire.RoutingKey != "" {
		faults = append(faults, "key_template and routing_key_template are for other brokers: Watermill has topics, which topic_template names")
	}
	if c.Concurrency < 0 {
		faults = append(faults, fmt.Sprintf("Concurrency is %d: want 1 at least, or 0 for %d", c.Concurrency, DefaultConcurrency))
	}
	if c.Style > broker.StyleRedis {
		faults = append(faults, fmt.Sprintf("Style is %d, and there is none of that number", c.Style))
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "watermill publisher", Detail: strings.Join(faults, "; ")}
}

// Publisher hands messages to a publisher of Watermill. It is safe for concurrent use.
type Publisher struct {
	to    message.Publisher
	cfg   Config
	wire  *broker.Wire
	slots chan struct{} // one for each call that runs

	stop    context.Context // ends when Close waits no longer
	cutLast context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   int           // messages whose done has not returned
	idle   chan struct{} // closed when there are none, after closed
	lanes  map[string]*lane
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// NewPublisher returns a publisher that hands messages to a publisher of Watermill: one message a call, its id as UUID, what the
// sink's format says of it as metadata, and a copy of its payload. to stays the caller's: Close does not close it.
func NewPublisher(to message.Publisher, c Config) (*Publisher, error) {
	err := c.Validate()
	if to == nil {
		err = errors.Join(err, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "watermill publisher", Detail: "there is no publisher of Watermill"})
	}
	if err != nil {
		return nil, err
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.Style == 0 {
		c.Style = broker.StyleRedis
	}
	wire, err := broker.NewWire(c.Wire, c.Style)
	if err != nil {
		return nil, err
	}
	p := &Publisher{to: to, cfg: c, wire: wire, slots: make(chan struct{}, c.Concurrency), idle: make(chan struct{}), lanes: map[string]*lane{}}
	p.stop, p.cutLast = context.WithCancel(context.Background())
	return p, nil
}

// Capabilities: a pipeline where Config.KeepsOrder says so. What Watermill's publisher knows of positions, copies and sizes it
// tells nobody.
func (p *Publisher) Capabilities() broker.Capabilities {
	return broker.Capabilities{Pipeline: p.cfg.KeepsOrder}
}

// Describe says what is not the default.
func (p *Publisher) Describe() string {
	var words []string
	if p.cfg.KeepsOrder {
		words = append(words, "keeps_order=true")
	}
	if wire := p.wire.Describe(); wire != "" {
		words = append(words, wire)
	}
	return strings.Join(words, " ")
}

// Check asks Config.Check.
func (p *Publisher) Check(ctx context.Context) error {
	err := ctx.Err()
	if err == nil && p.cfg.Check != nil {
		err = p.cfg.Check(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		err = errClosed
	}
	if err == nil {
		return nil
	}
	return &outbox.Error{
		Code: broker.CodeUnavailable, Op: "check the broker behind Watermill", Err: err, Hint: "the sink goes on by itself when its check is good again",
	}
}

var errClosed = errors.New("watermill: the publisher is closed")

// Close waits until Watermill's publisher has answered for what it has, or ctx ends; later messages are Unavailable. What is left
// then has its answer as well; a call of Watermill's Publish that does not return cannot be ended, and goes on.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.open == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	defer p.cutLast()
	select {
	case <-p.idle:
		return nil
	default:
	}
	select {
	case <-p.idle:
		return nil
	case <-ctx.Done():
		p.cutLast()
		return ctx.Err()
	}
}
