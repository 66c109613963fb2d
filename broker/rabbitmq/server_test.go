package rabbitmq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

// What the tests of all brokers have in common.
const patience = brokertest.Patience

var (
	until       = brokertest.Until
	untilWithin = brokertest.UntilWithin
	message     = brokertest.NewMessage
	messages    = brokertest.NewMessages
	publish     = brokertest.Publish
)

// want compares one answer with a situation's row of the table.
func want(tb testing.TB, r broker.Result, s situation) {
	tb.Helper()
	brokertest.Want(tb, r, rows()[s])
}

// rows are the table.
func rows() []brokertest.Row {
	rows := make([]brokertest.Row, len(verdicts))
	for i, v := range verdicts {
		rows[i] = brokertest.Row{Outcome: v.outcome, Code: v.code, Seen: v.seen, Means: v.means}
	}
	return rows
}

// commonURL is the server that all tests share; each makes an exchange and queues of its own there.
func commonURL(tb testing.TB) string {
	tb.Helper()
	u := os.Getenv("ONWARD_TEST_RABBITMQ_URL")
	if u == "" {
		tb.Skip(`ONWARD_TEST_RABBITMQ_URL is not set: dev/services up rabbitmq && eval "$(dev/services env rabbitmq)"`)
	}
	return u
}

// nodeStart is how long a node may take to start: 5 s alone, and many times that on a busy machine.
const nodeStart = 3 * time.Minute

// bench is one test's exchange with a queue, and a connection that looks at them.
type bench struct {
	tb       testing.TB
	url      string
	exchange string // of kind topic
	topic    string // bound to the queue
	queue    string
	conn     *amqp.Connection
	channel  *amqp.Channel

	mu      sync.Mutex
	arrived []brokertest.Message
}

// newBench makes an exchange and a queue with names of their own; arguments are the queue's.
func newBench(tb testing.TB, url string, arguments ...amqp.Table) *bench {
	tb.Helper()
	name := fmt.Sprintf("t%08x", rand.Uint32())
	b := &bench{tb: tb, url: url, exchange: name, topic: name + ".orders", queue: name}
	b.look()
	b.declare()
	b.bind(b.queue, "*.orders", append(arguments, nil)[0])
	return b
}

// look opens the connection that looks.
func (b *bench) look() {
	b.tb.Helper()
	until(b.tb, "the server answers", func() bool {
		conn, err := amqp.DialConfig(b.url, amqp.Config{Heartbeat: 10 * time.Second})
		if err != nil {
			return false
		}
		b.conn = conn
		return true
	})
	b.tb.Cleanup(func() { _ = b.conn.CloseDeadline(time.Now().Add(time.Second)) })
	b.open()
}

func (b *bench) open() {
	b.tb.Helper()
	var err error
	if b.channel, err = b.conn.Channel(); err != nil {
		b.tb.Fatal(err)
	}
}

func (b *bench) declare() {
	b.tb.Helper()
	if err := b.channel.ExchangeDeclare(b.exchange, "topic", true, false, false, false, nil); err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() {
		if !b.conn.IsClosed() {
			b.open()
			_ = b.channel.ExchangeDelete(b.exchange, false, false)
		}
	})
}

// bind makes a durable queue and binds it.
func (b *bench) bind(queue, key string, arguments amqp.Table) {
	b.tb.Helper()
	if _, err := b.channel.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() {
		if !b.conn.IsClosed() {
			b.open()
			_, _ = b.channel.QueueDelete(queue, false, false, false)
		}
	})
	if err := b.channel.QueueBind(queue, key, b.exchange, false, nil); err != nil {
		b.tb.Fatal(err)
	}
}

// consume takes what comes from now on out of the queue.
func (b *bench) consume() {
	b.tb.Helper()
	channel, err := b.conn.Channel()
	if err != nil {
		b.tb.Fatal(err)
	}
	deliveries, err := channel.Consume(b.queue, "", true, true, false, false, nil)
	if err != nil {
		b.tb.Fatal(err)
	}
	go func() {
		for d := range deliveries {
			b.mu.Lock()
			b.arrived = append(b.arrived, arrived(&d))
			b.mu.Unlock()
		}
	}()
}

// read returns what was consumed, n at least.
func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		b.mu.Lock()
		all := slices.Clone(b.arrived)
		b.mu.Unlock()
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

// count is how many messages the queue has, while nobody consumes.
func (b *bench) count() int {
	b.tb.Helper()
	b.open()
	q, err := b.channel.QueueDeclarePassive(b.queue, true, false, false, false, nil)
	if err != nil {
		b.tb.Fatal(err)
	}
	return q.Messages
}

// The broker's own slots, as headers of these names.
const (
	slotID, slotType, slotCorrelation, slotTime, slotMode = ":message-id", ":type", ":correlation-id", ":timestamp", ":delivery-mode"
)

func arrived(d *amqp.Delivery) brokertest.Message {
	m := brokertest.Message{Payload: d.Body}
	add := func(name, value string) {
		if value != "" {
			m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: value})
		}
	}
	for name, value := range d.Headers {
		m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: fmt.Sprint(value)})
	}
	add(slotID, d.MessageId)
	add(slotType, d.Type)
	add(slotCorrelation, d.CorrelationId)
	add(slotTime, d.Timestamp.UTC().Format(time.RFC3339))
	add(slotMode, fmt.Sprint(d.DeliveryMode))
	add(":other", d.ContentEncoding+d.AppId+d.UserId+d.Expiration+d.ReplyTo)
	return m
}

// slots are those of docs/names.md, written down a second time.
func slots(e broker.Envelope) []brokertest.Header {
	want := []brokertest.Header{
		{Name: slotID, Value: e.ID.String()},
		{Name: slotTime, Value: e.CreatedAt.UTC().Format(time.RFC3339)},
		{Name: slotMode, Value: "2"},
	}
	if len(e.Type) <= 255 {
		want = append(want, brokertest.Header{Name: slotType, Value: e.Type})
	}
	if e.CorrelationID != "" {
		want = append(want, brokertest.Header{Name: slotCorrelation, Value: e.CorrelationID})
	}
	return want
}

// publisher makes one for the bench's exchange.
func (b *bench) publisher(c Config) *Publisher {
	b.tb.Helper()
	return b.publisherAt(b.url, c)
}

func (b *bench) publisherAt(url string, c Config) *Publisher {
	b.tb.Helper()
	if c.Exchange == "" {
		c.Exchange = b.exchange
	}
	p, err := Dial(url, Options{}, c)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

// connected is a publisher that can be used.
func connected(tb testing.TB, p *Publisher) *Publisher {
	tb.Helper()
	var last error
	defer func() {
		if tb.Failed() {
			tb.Logf("the last Check: %v", last)
		}
	}()
	until(tb, "the publisher is connected", func() bool {
		last = p.Check(tb.Context())
		return last == nil && p.takesEverywhere()
	})
	return p
}

// takesEverywhere reports whether each channel is open: a connection that is frozen before that sends nothing on the others.
func (p *Publisher) takesEverywhere() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link != nil && !slices.ContainsFunc(p.link.lanes, func(l *lane) bool { return l.channel == nil })
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

// newProxy makes one, and returns the publisher's address of it.
func newProxy(tb testing.TB, url string) (*brokertest.Proxy, string) {
	tb.Helper()
	at, rest, _ := strings.Cut(url, "@")
	host, path, _ := strings.Cut(rest, "/")
	x := brokertest.NewProxy(tb, host)
	return x, at + "@" + x.Address() + "/" + path
}
