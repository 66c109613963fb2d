// Package nats publishes to a JetStream stream: acknowledged messages, many on their way at once, each answered exactly
// once through timeouts, disconnects and restarts of the server. docs/brokers/jetstream.md says what each answer of the
// server means for a message.
package nats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// codeUnsafe is the code of settings with which messages would be lost or overtaken.
const codeUnsafe outbox.Code = "onward/broker-unsafe"

// Config says where messages go. A message's topic is its subject.
type Config struct {
	// Stream is the name of the stream that takes the messages; needed. The server stores nothing in another one.
	Stream string
	// Domain is the JetStream domain of the stream; empty: the connection's own.
	Domain string
	// AckTimeout is how long a message waits for its acknowledgement before it is Uncertain, to 50 ms; the context of
	// Publish may end it earlier. 0: 10 s; at least 100 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once; more are Throttled. 0: 10,000.
	MaxPending int
	// Compare stores each message once, however often and by whomever it is published, as long as the stream keeps what
	// came before. Each key has a subject of its own: the topic, a dot, and the key with =XX for bytes outside of A-Z,
	// a-z, 0-9, _ and -; without a key, == and the id. A stream for which this cannot hold is refused, by Check and
	// Publish, with onward/broker-unsafe. All relays of a sink must have the same setting.
	Compare bool
	// MonitorURL is where the server's monitoring answers, http://host:8222, for Examine alone: how often the server writes to
	// the disk is said nowhere else. Empty: that is not read.
	MonitorURL string
	// Wire says how messages are written; the zero value is the raw format. Topic is the template of the subject, which in
	// compare mode the key follows as its last word. JetStream has no keys and no routing keys: Key and RoutingKey are
	// refused.
	Wire broker.WireConfig
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	if err := checkStreamName(c.Stream); err != nil {
		faults = append(faults, err.Error())
	}
	if strings.ContainsAny(c.Domain, " \t\r\n.*>") {
		faults = append(faults, fmt.Sprintf("domain %q has characters that a subject cannot have", c.Domain))
	}
	if c.AckTimeout != 0 && c.AckTimeout < 100*time.Millisecond {
		faults = append(faults, fmt.Sprintf("AckTimeout is %s: want 100ms at least, or 0 for 10s", c.AckTimeout))
	}
	if c.MaxPending < 0 {
		faults = append(faults, fmt.Sprintf("MaxPending is %d: want 1 at least, or 0 for 10,000", c.MaxPending))
	}
	if u, err := url.Parse(c.MonitorURL); c.MonitorURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		faults = append(faults, "MonitorURL is no http:// or https:// address")
	}
	for _, f := range c.Wire.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if c.Wire.Key != "" || c.Wire.RoutingKey != "" {
		faults = append(faults, "key_template and routing_key_template are for other brokers: JetStream has subjects alone, see topic_template")
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "nats publisher", Detail: strings.Join(faults, "; ")}
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

// api is the prefix of the JetStream API's subjects.
func (c Config) api() string {
	if c.Domain == "" {
		return "$JS.API"
	}
	return "$JS." + c.Domain + ".API"
}

// Publisher publishes to one stream. It is safe for concurrent use.
//
// Three goroutines of its own send, see timeouts, and mind the connection; others ask for the stream when there is a
// doubt. Close ends them.
type Publisher struct {
	cfg  Config
	wire *broker.Wire
	dial func() (*natsgo.Conn, error) // nil: the connection is the caller's, and the only one

	mu      sync.Mutex
	link    *link
	stream  *stream            // as last seen; nil before
	limit   int64              // the server's max_payload, as last seen; 0 before
	flights map[uint64]*flight // by token: what has no answer
	token   uint64
	queue   queue
	batches []*batch // oldest first, for the timeouts
	open    int      // messages whose done has not returned
	doubts  []doubt
	closing bool
	compare *comparison // nil: not in compare mode

	work     chan struct{} // tells the writer that the queue has something
	busy     chan struct{} // tells the watch that there is something on its way
	flying   chan struct{} // and the same to the mind
	idle     chan struct{} // closed when open is 0 while closing
	stop     context.Context
	stopNow  context.CancelFunc
	group    sync.WaitGroup // the goroutines
	finished chan struct{}  // closed when they have ended
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// NewPublisher makes a publisher on the caller's connection, which stays open when the publisher is closed. Neither the
// server nor the stream need exist yet. The connection must not keep messages for later while it is broken, because
// they would arrive behind their successors: open it with Connect, or with nats.ReconnectBufSize(-1); otherwise the
// error is onward/broker-unsafe.
//
// nats.go closes a connection for good on some errors of the server, for example when a message is larger than a
// max_payload that was lowered meanwhile. From then on everything is Unavailable; a publisher made by Dial connects
// again. NewPublisher puts itself before the connection's error handler, to learn of denied permissions.
func NewPublisher(nc *natsgo.Conn, c Config) (*Publisher, error) {
	if nc == nil {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "nats publisher", Detail: "the connection is nil"}
	}
	return newPublisher(nc, c, nil)
}

// Dial makes a publisher with a connection of its own, which it replaces when nats.go gives it up, and closes in Close.
// It returns at once, whether or not the server can be reached. See Connect for url and o.
func Dial(url string, o Options, c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dial := func() (*natsgo.Conn, error) { return Connect(url, o) }
	nc, err := dial()
	if err != nil {
		return nil, err
	}
	p, err := newPublisher(nc, c, dial)
	if err != nil {
		nc.Close()
	}
	return p, err
}

func newPublisher(nc *natsgo.Conn, c Config, dial func() (*natsgo.Conn, error)) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if nc.Opts.AllowReconnect && nc.Opts.ReconnectBufSize >= 0 {
		return nil, &outbox.Error{
			Code: codeUnsafe, Op: "nats publisher",
			Detail: "the connection keeps messages while it is broken and sends them later, behind their successors",
			Hint:   "open it with Connect of this package, or with nats.ReconnectBufSize(-1)",
		}
	}
	wire, err := broker.NewWire(c.Wire, broker.StyleNATS)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: c.withDefaults(), wire: wire, dial: dial, flights: map[uint64]*flight{},
		work: make(chan struct{}, 1), busy: make(chan struct{}, 1), flying: make(chan struct{}, 1), idle: make(chan struct{}), finished: make(chan struct{}),
	}
	if c.Compare {
		p.compare = newComparison()
	}
	p.stop, p.stopNow = context.WithCancel(context.Background())
	if p.link, err = p.newLink(nc); err != nil {
		p.stopNow()
		return nil, err
	}
	p.group.Go(p.write)
	p.group.Go(p.watch)
	p.group.Go(p.mind)
	if nc.IsConnected() { // so that Capabilities tell the truth from the start; Check asks again
		ctx, cancel := context.WithTimeout(p.stop, 2*time.Second)
		defer cancel()
		_, _ = p.look(ctx)
	}
	return p, nil
}

// Capabilities: no pipeline, because JetStream takes the next message of a key after it refused one. Dedup and MaxBytes
// are the stream's and the server's as last seen by NewPublisher or Check, and 0 before. In compare mode Dedup is the
// stream's max_age; without one, the longest duration there is.
func (p *Publisher) Capabilities() broker.Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := broker.Capabilities{Positions: true, MaxBytes: p.maxBytes()}
	if p.stream != nil {
		c.Dedup = p.stream.Config.Duplicates
		if p.compare != nil {
			c.Dedup = p.stream.keeps()
		}
	}
	return c
}

// Describe says how messages are written, and whether they are compared.
func (p *Publisher) Describe() string {
	if p.compare == nil {
		return p.wire.Describe()
	}
	return strings.TrimSpace("no_duplicates=compare " + p.wire.Describe())
}

// Check asks the server for the stream, and whether it takes messages.
func (p *Publisher) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AckTimeout)
	defer cancel()
	s, err := p.lookPatiently(ctx, false)
	if err == nil {
		if s.unsafe != nil {
			return s.unsafe
		}
		return s.takes()
	}
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check stream " + p.cfg.Stream}
	down := (*downError)(nil)
	switch {
	case errors.Is(err, errClosed):
		e.Detail = "the publisher is closed"
	case errors.Is(err, errNoStream):
		e.Detail, e.Hint = "it does not exist", "nats stream add "+p.cfg.Stream+" --subjects 'orders.>' --storage file --defaults, with the sink's topics as subjects"
	case errors.As(err, &down):
		e.Detail, e.Hint, e.Err = down.what, down.hint, down.cause
	default:
		e.Detail, e.Err = "JetStream does not answer", err
		e.Hint = "switch JetStream on in the server's configuration, and let this user publish to " + p.cfg.api() + ".STREAM.INFO." + p.cfg.Stream
		if p.cfg.Compare {
			e.Hint += " and " + p.cfg.api() + ".STREAM.MSG.GET." + p.cfg.Stream
		}
	}
	return e
}

// errClosed: the publisher is closed.
var errClosed = errors.New("nats: the publisher is closed")

// look asks the server for the stream and remembers what it said.
func (p *Publisher) look(ctx context.Context) (*stream, error) {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	s, err := l.lookup(ctx, p.cfg, p.dial != nil)
	if err == nil && p.compare != nil {
		s.unsafe = s.comparable()
		_, err = l.get(ctx, p.cfg, getRequest{Seq: math.MaxInt64}) // may this user?
	}
	limit := l.nc.MaxPayload()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
	if err == nil {
		if p.compare != nil && (p.stream == nil || !p.stream.Created.Equal(s.Created)) {
			p.compare.forgetAll()
		}
		p.stream = s
	} else if errors.Is(err, errNoStream) {
		p.stream = nil
	}
	return s, err
}

// lookPatiently looks, and returns when ctx ends even if the connection is stuck in a write and look is not back. A
// closing publisher looks only for messages in doubt.
func (p *Publisher) lookPatiently(ctx context.Context, doubt bool) (*stream, error) {
	type outcome struct {
		stream *stream
		err    error
	}
	back := make(chan outcome, 1)
	p.mu.Lock()
	if p.closing && !doubt {
		p.mu.Unlock()
		return nil, errClosed
	}
	p.group.Go(func() {
		s, err := p.look(ctx)
		back <- outcome{s, err}
	})
	p.mu.Unlock()
	select {
	case o := <-back:
		return o.stream, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not. A connection made by Dial is closed.
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
	case <-ctx.Done(): // the connection is stuck: its write ends with a timeout, and the writer then
		return ctx.Err()
	}
}

// finish frees what the publisher made, once its goroutines have ended.
func (p *Publisher) finish() {
	<-p.stop.Done()
	p.group.Wait()
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	l.close(p.dial != nil)
	close(p.finished)
}
