// Package rabbitmq publishes to RabbitMQ over AMQP 0-9-1: confirmed, mandatory and persistent messages, on several channels
// of one connection, each answered exactly once through timeouts, closed channels, lost connections and alarms of the
// server. docs/brokers/rabbitmq.md says what each answer of the server means for a message.
package rabbitmq

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inflight"
	"github.com/onwardhq/onward/outbox"
)

// Config says where messages go.
type Config struct {
	// Exchange takes the messages; it must exist. It is a name, or a template of one (see broker.ParseTemplate); messages of
	// one key stay in order only where they go to one queue. Empty: the default exchange, where a routing key is the name of a
	// queue.
	Exchange string
	// AckTimeout is how long a message waits for its confirmation before it is Uncertain, to 50 ms; the context of Publish
	// may end it earlier. 0: 10 s; at least 100 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once; more are Throttled. 0: 10,000.
	MaxPending int
	// Channels is how many share the messages; a key has its channel. 0: 4; at most 100.
	Channels int
	// ManagementURL is where the management plugin answers, http://user:password@host:15672, for Examine alone: types and limits
	// of queues are said nowhere else. Without a user it is asked as the broker is. Empty: that is not read.
	ManagementURL string
	// Wire says how messages are written; the zero value is the raw format. RoutingKey is a template, empty: the topic. RabbitMQ
	// has no other names: Topic and Key are refused.
	Wire broker.WireConfig
}

const maxChannels = 100

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	if err := CheckExchange(c.Exchange); err != nil {
		faults = append(faults, "Exchange: "+err.Error())
	}
	for _, f := range c.Wire.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if c.Wire.Topic != "" || c.Wire.Key != "" {
		faults = append(faults, "topic_template and key_template are for other brokers: RabbitMQ has exchanges and routing keys")
	}
	if u, err := url.Parse(c.ManagementURL); c.ManagementURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		faults = append(faults, "ManagementURL is no http:// or https:// address")
	}
	if c.AckTimeout != 0 && c.AckTimeout < 100*time.Millisecond {
		faults = append(faults, fmt.Sprintf("AckTimeout is %s: want 100ms at least, or 0 for 10s", c.AckTimeout))
	}
	if c.MaxPending < 0 {
		faults = append(faults, fmt.Sprintf("MaxPending is %d: want 1 at least, or 0 for 10,000", c.MaxPending))
	}
	if c.Channels < 0 || c.Channels > maxChannels {
		faults = append(faults, fmt.Sprintf("Channels is %d: want 1 to %d, or 0 for 4", c.Channels, maxChannels))
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "rabbitmq publisher", Detail: strings.Join(faults, "; ")}
}

func (c Config) withDefaults() Config {
	if c.AckTimeout == 0 {
		c.AckTimeout = 10 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 10_000
	}
	if c.Channels == 0 {
		c.Channels = 4
	}
	return c
}

// Publisher publishes over one connection, which it makes again when it is lost. It is safe for concurrent use.
//
// Of its goroutines one keeps the connection, one sends, one sees timeouts, one gives answers, and one for each channel
// waits for confirmations. Close ends them.
type Publisher struct {
	cfg   Config
	route route
	wire  *broker.Wire
	dial  dialer

	mu       sync.Mutex
	settling time.Duration          // settling, but for tests
	link     *link                  // nil while there is no connection
	fault    error                  // why there is none
	limit    int                    // the server's max_message_size, where it has refused a larger one on this connection; 0: not known
	suspects map[outbox.ID]struct{} // were on their way when the server closed their channel, and no one knows which it meant
	denied   map[address]struct{}   // where the server has closed a channel because of one message that went there
	taken    map[string]struct{}    // exchanges of a template that took a message on this connection
	largest  int                    // payload that the server took on this connection, or would take anyway

	pulse   atomic.Int64 // when the watch last looked, since began
	began   time.Time    // of the publisher's clock
	flights *inflight.Set
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// Dial makes a publisher, and returns at once, whether or not the server can be reached: it connects in the background,
// and again whenever the connection is lost. url is an AMQP URL, amqp://user:password@host:5672/vhost or amqps://..., or
// several with commas between, of which it takes the next when one does not answer.
func Dial(url string, o Options, c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	d, err := newDialer(url, o)
	if err != nil {
		return nil, err
	}
	r, err := newRoute(c.Exchange)
	if err != nil {
		return nil, err
	}
	wire, err := broker.NewWire(c.Wire, broker.StyleAMQP)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: c.withDefaults(), route: r, wire: wire, dial: d, began: time.Now(), fault: errConnecting, settling: settling,
		suspects: map[outbox.ID]struct{}{}, denied: map[address]struct{}{}, taken: map[string]struct{}{},
	}
	p.flights = inflight.New(inflight.Config{Name: "rabbitmq", Mutex: &p.mu, AckTimeout: p.cfg.AckTimeout, MaxPending: p.cfg.MaxPending, Look: p.look})
	p.flights.Go(p.keep)
	p.flights.Go(p.write)
	return p, nil
}

// Capabilities: no pipeline, because RabbitMQ takes the next message of a key after it returned or refused one; no
// positions; and no server drops a second copy. MaxBytes is known once the server has refused a larger message.
func (p *Publisher) Capabilities() broker.Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	return broker.Capabilities{MaxBytes: p.limit}
}

// Describe says where messages go, and how they are written, where that is not the default.
func (p *Publisher) Describe() string {
	if p.cfg.Exchange == "" {
		return p.wire.Describe()
	}
	exchange := p.cfg.Exchange
	if strings.ContainsAny(exchange, " \t\n\"") {
		exchange = strconv.Quote(exchange)
	}
	return strings.TrimSpace("exchange=" + exchange + " " + p.wire.Describe())
}

// Check asks the server whether the exchange is there, where all messages go to one, and says why it takes none now.
func (p *Publisher) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AckTimeout)
	defer cancel()
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check RabbitMQ"}
	p.mu.Lock()
	l, fault, closing := p.link, p.fault, p.flights.Closing()
	var blocked string
	if l != nil {
		blocked = l.blocked
	}
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		e.Detail, e.Err = "not asked", context.Cause(ctx)
		e.Hint = "the context had ended before"
	case closing:
		e.Detail = "the publisher is closed"
	case l == nil:
		e.Detail, e.Err = "there is no connection", fault
		e.Hint = "is the server up, and are address, user, password, virtual host and TLS settings right? Tried: " + p.dial.places()
	case blocked != "":
		e.Detail = "the server takes no messages: " + blocked
		e.Hint = "an alarm of its memory or disk; see: rabbitmq-diagnostics alarms, and free some, or raise vm_memory_high_watermark or lower disk_free_limit"
	default:
		return p.ask(ctx, l, e)
	}
	return e
}

// ask looks the exchange up over a channel of its own, and returns when ctx ends even if the server says nothing.
func (p *Publisher) ask(ctx context.Context, l *link, e *outbox.Error) error {
	exchange, fixed := p.route.fixed()
	back := make(chan error, 1)
	p.mu.Lock()
	leave, open := p.flights.Enter()
	p.mu.Unlock()
	if !open {
		e.Detail = "the publisher is closed"
		return e
	}
	go func() {
		defer leave()
		back <- l.lookUp(exchange, fixed && exchange != "")
	}()
	var err error
	select {
	case err = <-back:
	case <-ctx.Done():
		err = context.Cause(ctx)
		e.Hint = "the server answers nothing on an open connection"
	}
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeNotFound:
		e.Detail = fmt.Sprintf("exchange %q does not exist", exchange)
		e.Hint = "declare it, durable, and bind a queue: rabbitmqadmin declare exchange name=" + exchange + " type=topic durable=true"
	default:
		e.Detail = "the server does not answer"
	}
	if e.Hint == "" {
		e.Hint = "look into the server's log"
	}
	e.Err = err
	return e
}

// Publish puts the batch into the queue of the writer and returns.
func (p *Publisher) Publish(ctx context.Context, batch []broker.Envelope, done func(i int, r broker.Result)) {
	p.flights.Publish(ctx, batch, done)
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not.
func (p *Publisher) Close(ctx context.Context) error { return p.flights.Close(ctx) }

// standstill is for how long the watch may not have looked: the client drops returns and confirmations that nobody took for 5 s, so a
// process that stood still that long cannot trust what it has not seen.
const standstill = 4 * time.Second

// look is called by the watch over what is on its way. The caller has the lock.
func (p *Publisher) look() {
	if p.stoodStill() && p.link != nil {
		p.link.drop()
	}
	p.pulse.Store(int64(time.Since(p.began)))
}

// stoodStill reports whether this process did nothing for a while: it was stopped, or its machine.
func (p *Publisher) stoodStill() bool {
	return time.Since(p.began)-time.Duration(p.pulse.Load()) > standstill
}
