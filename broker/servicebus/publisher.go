// Package servicebus publishes to queues and topics of Azure Service Bus over AMQP 1.0: each message with an outcome of its own,
// answered exactly once through timeouts, ended links, lost connections and tokens that end. docs/brokers/servicebus.md says what
// each answer of the service means for a message, and what it is worth.
package servicebus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config says where messages go. The queue or topic of a message is its topic, unless Wire.Topic or the connection string's
// EntityPath says otherwise.
type Config struct {
	// ScheduleHeader is the name of a message's header with a time (RFC 3339): the service hands the message out then, and what
	// is sent meanwhile before it. Empty: none.
	ScheduleHeader string
	// AckTimeout is how long a message waits for its answer before it is Uncertain, to 50 ms; the context of Publish may end it
	// earlier. 0: 10 s; at least 100 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once; more are Throttled. 0: 10,000.
	MaxPending int
	// Wire says how messages are written; the zero value is the raw format. Topic is a template of the queue or topic, Key one of
	// the session's id. RoutingKey is refused.
	Wire broker.WireConfig
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	add := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	for _, f := range c.Wire.Faults() {
		add(true, "%s %s", f.Setting, f.Detail)
	}
	add(c.Wire.RoutingKey != "", "routing_key_template is for other brokers: topic_template names the queue or topic")
	add(c.AckTimeout != 0 && c.AckTimeout < 100*time.Millisecond, "AckTimeout is %s: want 100ms at least, or 0 for 10s", c.AckTimeout)
	add(c.MaxPending < 0, "MaxPending is %d: want 1 at least, or 0 for 10,000", c.MaxPending)
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "servicebus publisher", Detail: strings.Join(faults, "; ")}
}

func (c Config) withDefaults() Config {
	if c.AckTimeout == 0 {
		c.AckTimeout = 10 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 10_000
	}
	return c
}

// Publisher publishes over one connection, which it makes again when it is lost, with a link for each queue or topic; Check has
// a connection of its own for a moment. It is safe for concurrent use.
//
// Of its goroutines one keeps the connection, one finds each message's queue or topic, one for each of these sends, one for each
// message on its way waits for its outcome, one sees timeouts, and one gives answers. Close ends them.
type Publisher struct {
	cfg   Config
	wire  *broker.Wire
	dial  dialer
	fixed string // the queue or topic of all messages; empty: each has its own

	mu      sync.Mutex
	link    *link  // nil while there is no connection
	fault   error  // why there is none
	limit   uint64 // of a message to fixed, where it is known; else 0
	lanes   map[string]*lane
	queue   queue // what has no lane yet
	batches []*batch
	late    []*batch // those whose time is over while the client may have messages of theirs in its hands
	open    int      // messages whose done has not returned
	pending int      // messages that have no answer
	answers []answer
	closing bool

	work     chan struct{} // tells that the queue has something
	busy     chan struct{} // tells the watch that there is something on its way
	answered chan struct{} // tells the answerer that there are answers
	idle     chan struct{} // closed when open is 0 while closing
	stop     context.Context
	stopNow  context.CancelFunc
	group    sync.WaitGroup
	finished chan struct{} // closed when all goroutines have ended
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// Dial makes a publisher, and returns at once, whether or not the service can be reached: it connects in the background, and
// again whenever the connection is lost. address is a connection string, or servicebus://NAMESPACE.servicebus.windows.net with
// Options.Credential.
func Dial(address string, o Options, c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	d, err := newDialer(address, o)
	if err != nil {
		return nil, err
	}
	return dial(d, c)
}

func dial(d dialer, c Config) (*Publisher, error) {
	c = c.withDefaults()
	if c.Wire.Topic == "" {
		c.Wire.Topic = d.address.entity
	}
	wire, err := broker.NewWire(c.Wire, broker.StyleAMQP)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: c, wire: wire, dial: d, fault: errConnecting, lanes: map[string]*lane{},
		work: make(chan struct{}, 1), busy: make(chan struct{}, 1), answered: make(chan struct{}, 1),
		idle: make(chan struct{}), finished: make(chan struct{}),
	}
	if !strings.Contains(c.Wire.Topic, "{{") {
		p.fixed = c.Wire.Topic
	}
	p.stop, p.stopNow = context.WithCancel(context.Background())
	p.group.Go(p.keep)
	p.group.Go(p.sort)
	p.group.Go(p.watch)
	p.group.Go(p.giveAnswers)
	return p, nil
}

// sort is the goroutine that finds the lane of each message.
func (p *Publisher) sort() {
	for {
		p.mu.Lock()
		f := p.queue.pop()
		known := f != nil && f.state == queued
		if known {
			f.state = building
		}
		p.mu.Unlock()
		switch {
		case known:
			p.assign(f)
		case f != nil:
		default:
			select {
			case <-p.work:
			case <-p.stop.Done(): // everything has its answer by now
				return
			}
		}
	}
}

// assign puts a message into the queue of its lane.
func (p *Publisher) assign(f *flight) {
	entity, err := p.wire.Topic(&f.batch.envelopes[f.index])
	if err != nil {
		p.conclude(f, false, templateFailed.result(err))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.early != nil {
		p.settle(f, *f.early)
		return
	}
	f.state = queued
	l := p.laneOf(entity)
	l.queue.push(f)
	signal(l.wake)
}

// roomOfFrames is what AMQP needs beside the texts of a message: properties that are there twice, and the types of up to 300
// application properties.
const roomOfFrames = 8 << 10

// Capabilities: no pipeline, because the service takes the next message of a key after it refused one; no positions, because it
// names none; and it drops a second copy only where a queue or topic is made so. MaxBytes is known where all messages go to one
// queue or topic, once that was reached.
func (p *Publisher) Capabilities() broker.Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit == 0 {
		return broker.Capabilities{}
	}
	return broker.Capabilities{MaxBytes: p.takes(p.limit)}
}

// takes is the largest payload in a message that may have this size.
func (p *Publisher) takes(limit uint64) int {
	return p.wire.MaxPayload(int(min(limit, 1<<30)) - roomOfFrames)
}

// Describe says how messages are scheduled and written, where that is not the default.
func (p *Publisher) Describe() string {
	var words []string
	if p.cfg.ScheduleHeader != "" {
		words = append(words, "schedule_header="+p.cfg.ScheduleHeader)
	}
	if wire := p.wire.Describe(); wire != "" {
		words = append(words, wire)
	}
	return strings.Join(words, " ")
}

// Check asks the service, over a connection of its own, whether it takes the token, and where all messages go to one queue or
// topic, whether that can be opened for sending. Whether it is full only a message finds out.
func (p *Publisher) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AckTimeout)
	defer cancel()
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check Service Bus"}
	p.mu.Lock()
	closing := p.closing
	if !closing {
		p.group.Add(1)
		defer p.group.Done()
	}
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		e.Detail, e.Hint, e.Err = "not asked", "the context had ended before", context.Cause(ctx)
		return e
	case closing:
		e.Detail = "the publisher is closed"
		return e
	}
	limit, err := p.dial.probe(ctx, p.fixed)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch connected := p.link != nil && p.link.conn.Err() == nil; {
	case err == nil && connected:
		p.limit = limit
		return nil
	case err == nil:
		e.Detail, e.Hint = "the connection is not made again yet", "ask again in a second"
	default:
		e.Detail, e.Err, e.Hint = "the service takes no messages", err, p.hint(err)
	}
	return e
}

// hint says what to do about what Check found.
func (p *Publisher) hint(err error) string { return p.hintFor(p.fixed, err) }

func (p *Publisher) hintFor(entity string, err error) string {
	if errors.Is(err, errCredential) {
		return "the credential gives no token: is the machine's identity there, or are AZURE_TENANT_ID, AZURE_CLIENT_ID and the like set?"
	}
	if claim := (*claimError)(nil); errors.As(err, &claim) {
		return "the service refuses the key or the identity: it needs the right to send (a policy with Send, or the role Azure Service Bus Data Sender)"
	}
	switch p.judgeAttach(err) {
	case noEntity, noSuchEntity:
		return "make the queue or topic " + entity + ", or name another with topic_template"
	case permissionDenied:
		return "give the key the right to send (a policy with Send), or the identity the role Azure Service Bus Data Sender"
	case allDisabled, disabled:
		return "the queue or topic is disabled for sending: enable it"
	case allFull, full:
		return "the queue or topic is full: read it, or make it larger"
	default:
		return "is the namespace there, and may this machine reach it on port 5671? Tried: " + p.dial.place()
	}
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		if p.open == 0 {
			close(p.idle)
		}
		go p.finish()
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
		p.abandon(ctx.Err())
	}
	p.stopNow()
	select {
	case <-p.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish waits for the goroutines, which end when stop does.
func (p *Publisher) finish() {
	<-p.stop.Done()
	p.group.Wait()
	close(p.finished)
}
