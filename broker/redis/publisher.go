// Package redis publishes to Redis Streams: XADD in rounds over one connection, each message answered exactly once through
// timeouts, lost connections and what the server refuses, on request behind a fence that stops a relay which no longer owns
// its partition. docs/brokers/redis.md says what each answer of the server means for a message, and what it is worth.
package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inflight"
	"github.com/onwardhq/onward/outbox"
)

// PayloadField is the field of an entry that holds the payload; the others are the headers of the format.
const PayloadField = "onward-payload"

// Config says where messages go. The stream of a message is its topic, unless Wire.Topic says otherwise.
type Config struct {
	// MaxLen trims a stream to about that many entries with each message. 0: not. MaxAge trims what is older, by the clock of
	// this process; at least 1 s. 0: not. At most one of them. What is trimmed is gone, read or not.
	MaxLen int64
	MaxAge time.Duration
	// ExactTrim trims to the entry; without it the server trims whole nodes of about 100, which costs it much less.
	ExactTrim bool
	// Fence is a name of the sink and its database, which no other has at the server: the server then refuses messages of a
	// relay whose partition another relay has published for since. Empty: no fence. 1 to 64 of a-z, 0-9, _ and -.
	Fence string
	// FenceFor is for how long the server remembers the last owner of a partition after its last message. 0: 1 h; at least 1 min.
	FenceFor time.Duration
	// WaitAOF has each message accepted only once the server has it on its disk, whatever its appendfsync is. It needs Redis 7.2.
	WaitAOF bool
	// AckTimeout is how long a message waits for its answer before it is Uncertain, to 50 ms; the context of Publish may end it
	// earlier. 0: 10 s; at least 100 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once; more are Throttled. 0: 10,000.
	MaxPending int
	// Wire says how messages are written; the zero value is the raw format. Topic is a template of the stream. Redis has no other
	// names: Key and RoutingKey are refused.
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
	add(c.Wire.Key != "" || c.Wire.RoutingKey != "", "key_template and routing_key_template are for other brokers: Redis has streams, which topic_template names")
	add(c.MaxLen < 0, "MaxLen is %d: want 1 at least, or 0 for no limit", c.MaxLen)
	add(c.MaxAge != 0 && c.MaxAge < time.Second, "MaxAge is %s: want 1s at least, or 0 for no limit", c.MaxAge)
	add(c.MaxLen != 0 && c.MaxAge != 0, "MaxLen and MaxAge are both set: the server trims by one of them")
	add(c.Fence != "" && !fenceName.MatchString(c.Fence), "Fence is %q: want 1 to 64 of a-z, 0-9, _ and -", c.Fence)
	add(c.FenceFor != 0 && c.FenceFor < time.Minute, "FenceFor is %s: want 1m at least, or 0 for 1h", c.FenceFor)
	add(c.AckTimeout != 0 && c.AckTimeout < 100*time.Millisecond, "AckTimeout is %s: want 100ms at least, or 0 for 10s", c.AckTimeout)
	add(c.MaxPending < 0, "MaxPending is %d: want 1 at least, or 0 for 10,000", c.MaxPending)
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "redis publisher", Detail: strings.Join(faults, "; ")}
}

func (c Config) withDefaults() Config {
	if c.FenceFor == 0 {
		c.FenceFor = time.Hour
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = 10 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 10_000
	}
	return c
}

// Publisher publishes over one connection, which it makes again when it is lost; Check has one of its own for a moment. It is
// safe for concurrent use.
//
// Of its goroutines one keeps the connection, one sends and reads replies, one sees timeouts, and one gives answers. Close ends
// them.
type Publisher struct {
	cfg  Config
	wire *broker.Wire
	dial dialer

	mu      sync.Mutex
	link    *link // nil while there is no connection
	fault   error // why there is none
	limit   int   // the server's proto-max-bulk-len, where it is known; else 0
	flights *inflight.Set
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// Dial makes a publisher, and returns at once, whether or not the server can be reached: it connects in the background, and
// again whenever the connection is lost. url is redis://user:password@host:6379/0, or rediss://... with TLS.
func Dial(url string, o Options, c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	d, err := newDialer(url, o, c)
	if err != nil {
		return nil, err
	}
	wire, err := broker.NewWire(c.Wire, broker.StyleRedis)
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: c, wire: wire, dial: d, fault: errConnecting}
	p.flights = inflight.New(inflight.Config{Name: "redis", Mutex: &p.mu, AckTimeout: c.AckTimeout, MaxPending: c.MaxPending})
	p.flights.Go(p.keep)
	p.flights.Go(p.write)
	return p, nil
}

// Capabilities: no pipeline, because Redis takes the next message of a key after it refused one; positions, which are the ids of
// entries; and it drops no second copy. MaxBytes is known where the relay's user may read proto-max-bulk-len and it is not the
// default, 512 MB.
func (p *Publisher) Capabilities() broker.Capabilities {
	c := broker.Capabilities{Positions: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit > 0 && p.limit < usualBulk {
		c.MaxBytes = p.limit
		if p.wire.Format() == broker.FormatStructured {
			c.MaxBytes = p.wire.MaxPayload(p.limit)
		}
	}
	return c
}

// Describe says how streams are trimmed and fenced, and how messages are written, where that is not the default.
func (p *Publisher) Describe() string {
	var words []string
	add := func(set bool, word string) {
		if set {
			words = append(words, word)
		}
	}
	add(p.cfg.MaxLen != 0, "max_len="+strconv.FormatInt(p.cfg.MaxLen, 10))
	add(p.cfg.MaxAge != 0, "max_age="+p.cfg.MaxAge.String())
	add(p.cfg.ExactTrim, "exact_trim=true")
	add(p.cfg.Fence != "", "fence="+p.cfg.Fence)
	add(p.cfg.Fence != "" && p.cfg.FenceFor != time.Hour, "fence_for="+p.cfg.FenceFor.String())
	add(p.cfg.WaitAOF, "wait_aof=true")
	wire := p.wire.Describe()
	add(wire != "", wire)
	return strings.Join(words, " ")
}

// Check asks the server, over a connection of its own, whether it takes writes now, and says what is missing. Below Redis 7 it
// asks only whether the server answers.
func (p *Publisher) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AckTimeout)
	defer cancel()
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check Redis"}
	p.mu.Lock()
	connected := p.link != nil
	leave, open := p.flights.Enter()
	p.mu.Unlock()
	if open {
		defer leave()
	}
	switch {
	case ctx.Err() != nil:
		e.Detail, e.Hint, e.Err = "not asked", "the context had ended before", context.Cause(ctx)
		return e
	case !open:
		e.Detail = "the publisher is closed"
		return e
	}
	err := p.dial.probe(ctx)
	switch {
	case err == nil && connected:
		return nil
	case err == nil:
		e.Detail, e.Hint = "the connection is not made again yet", "ask again in a second"
	case hintOf(err) != "":
		e.Detail, e.Err, e.Hint = "the server takes no messages", err, hintOf(err)
	default:
		e.Detail, e.Err = "the server does not answer", err
		e.Hint = "is the server up, and are address and TLS settings right? Tried: " + p.dial.place
	}
	return e
}

// Publish puts the batch into the queue of the writer and returns.
func (p *Publisher) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	p.flights.Publish(ctx, batch, done)
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not.
func (p *Publisher) Close(ctx context.Context) error { return p.flights.Close(ctx) }
