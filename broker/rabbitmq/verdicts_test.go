package rabbitmq

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// drives brings about each situation on a real server and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		for _, r := range publish(t, t.Context(), connected(t, b.publisher(Config{})), messages(3, b.topic)...) {
			want(t, r, taken)
		}
		if n := b.count(); n != 3 {
			t.Errorf("the queue has %d messages, want 3", n)
		}
	},

	templateFailed: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		for _, c := range []Config{
			{Wire: broker.WireConfig{RoutingKey: "{{.Headers.missing}}.orders"}}, {Exchange: b.exchange + "{{.Headers.missing}}"},
		} {
			want(t, publish(t, t.Context(), connected(t, b.publisher(c)), message(b.topic, ""))[0], templateFailed)
		}
	},
	badText: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/test"}}))
		m := message(b.topic, "")
		m.Type = "\xff"
		want(t, publish(t, t.Context(), p, m)[0], badText)
	},
	badAddress: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		m := message(strings.Repeat("t", 256), "")
		want(t, publish(t, t.Context(), connected(t, b.publisher(Config{})), m)[0], badAddress)
		want(t, publish(t, t.Context(), connected(t, b.publisher(Config{Exchange: "{{.Scope}}"})), message(b.topic, ""))[0], badAddress)
	},
	badHeader: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		for _, name := range []string{"", strings.Repeat("n", 256)} {
			m := message(b.topic, "")
			m.Record.Headers = map[string]string{name: "1"}
			want(t, publish(t, t.Context(), p, m)[0], badHeader)
		}
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	},
	reservedHeader: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		for _, name := range []string{"CC", "BCC"} {
			m := message(b.topic, "")
			m.Record.Headers = map[string]string{name: b.topic}
			want(t, publish(t, t.Context(), p, m)[0], reservedHeader)
		}
	},
	headersTooLarge: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		m := message(b.topic, "")
		m.Record.Headers = map[string]string{"large": strings.Repeat("x", 128<<10)}
		other := message(b.topic, "")
		other.Record.Headers = map[string]string{"large": strings.Repeat("x", 127<<10)}
		r := publish(t, t.Context(), p, m, other)
		want(t, r[0], headersTooLarge)
		want(t, r[1], taken)
	},
	aboveLimit:      onTheNode,
	aboveKnownLimit: onTheNode,
	unroutable: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		batch := messages(40, b.topic)
		for i := range batch {
			if i%2 == 0 {
				batch[i].Topic = b.topic + ".elsewhere"
			}
		}
		for i, r := range publish(t, t.Context(), p, batch...) {
			want(t, r, []situation{unroutable, taken}[i%2])
		}
		if n := b.count(); n != 20 {
			t.Errorf("the queue has %d messages, want 20", n)
		}
	},
	unroutableYet: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		again := func() {
			x.Stop()
			until(t, "the connection is lost", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.link == nil
			})
			x.Start()
			connected(t, p)
		}
		again()
		m := message(b.topic+".elsewhere", "")
		want(t, publish(t, t.Context(), p, m)[0], unroutableYet)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		p.mu.Lock()
		p.settling = time.Nanosecond
		p.mu.Unlock()
		again()
		want(t, publish(t, t.Context(), p, m)[0], unroutable)
	},
	noSuchExchange: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{Exchange: "{{.Scope}}"}))
		lost := message(b.topic, "lost")
		lost.Scope = b.exchange + "-none"
		want(t, publish(t, t.Context(), p, lost)[0], noSuchExchange)
		lost.Scope += "-either"
		batch := []broker.Envelope{lost}
		for range 20 { // nobody knows of their exchange either: the first one tells
			m := message(b.topic, "")
			m.Scope = b.exchange
			batch = append(batch, m)
		}
		for i, r := range publish(t, t.Context(), p, append(batch, lost)...) {
			want(t, r, map[bool]situation{true: noSuchExchange, false: taken}[i == 0 || i == len(batch)])
		}
	},
	permissionDenied: func(t *testing.T) { // as for a user without the permission, of which there is one on the node
		b := newBench(t, commonURL(t))
		internal := b.exchange + "-internal"
		if err := b.channel.ExchangeDeclare(internal, "topic", true, true, true, false, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			b.open()
			_ = b.channel.ExchangeDelete(internal, false, false)
		})
		p := connected(t, b.publisher(Config{Exchange: internal}))
		for range 3 {
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], permissionDenied)
		}
	},
	refused: nil, // *
	nacked: func(t *testing.T) {
		b := newBench(t, commonURL(t), amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		p := connected(t, b.publisher(Config{}))
		var r broker.Result
		until(t, "the queue is full", func() bool { // its limit is soft
			r = publish(t, t.Context(), p, message(b.topic, ""))[0]
			return r.Outcome != broker.Accepted
		})
		want(t, r, nacked)
		b.consume()
		until(t, "the queue takes messages again", func() bool {
			return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted
		})
	},

	noExchange: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		if err := b.channel.ExchangeDelete(b.exchange, false, false); err != nil {
			t.Fatal(err)
		}
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noExchange)
		err := p.Check(t.Context())
		if outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(outbox.Hint(err), "declare exchange name="+b.exchange) {
			t.Errorf("Check says %v (hint %q)", err, outbox.Hint(err))
		}
		b.declare()
		if err := b.channel.QueueBind(b.queue, "*.orders", b.exchange, false, nil); err != nil {
			t.Fatal(err)
		}
		want(t, publish(t, t.Context(), connected(t, p), message(b.topic, ""))[0], taken)
	},
	blocked: onTheNode,
	notConnected: func(t *testing.T) {
		p, err := Dial(fmt.Sprintf("amqp://127.0.0.1:%d", brokertest.FreePort()), Options{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeNow(p) })
		want(t, publish(t, t.Context(), p, message("a", ""))[0], notConnected)
	},
	notSent: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, publish(t, ended, connected(t, b.publisher(Config{})), message(b.topic, ""))[0], notSent)
	},
	closed: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		closeNow(p)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], closed)
	},

	tooManyPending: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		r := publish(t, t.Context(), connected(t, b.publisher(Config{MaxPending: 2})), messages(3, b.topic)...)
		want(t, r[0], taken)
		want(t, r[2], tooManyPending)
	},

	channelClosed: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{Channels: 1}))
		x.Freeze()
		if err := b.channel.ExchangeDelete(b.exchange, false, false); err != nil {
			t.Fatal(err)
		}
		batch := messages(3, b.topic)
		answers := start(p, batch)
		p.untilSent(t, 3)
		x.Thaw()
		for _, r := range answers(t) {
			want(t, r, channelClosed)
		}
		for _, r := range publish(t, t.Context(), p, batch...) { // alone
			want(t, r, noExchange)
		}
	},
	connectionLost: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		x.Freeze()
		answers := start(p, messages(3, b.topic))
		p.untilSent(t, 3)
		x.Stop()
		for _, r := range answers(t) {
			want(t, r, connectionLost)
		}
		x.Thaw()
	},
	noAnswer: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{AckTimeout: 100 * time.Millisecond}))
		x.Freeze()
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noAnswer)
		x.Thaw()
	},
	contextEnded: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		x.Freeze()
		want(t, cutShort(t, p, message(b.topic, "")), contextEnded)
		x.Thaw()
	},
	unclear: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		x.Freeze()
		m := message(b.topic+".elsewhere", "")
		want(t, cutShort(t, p, m), contextEnded)
		answers := start(p, []broker.Envelope{m})
		p.untilSent(t, 2)
		x.Thaw()
		want(t, answers(t)[0], unclear)
		want(t, publish(t, t.Context(), p, m)[0], unroutable)
	},
}

// onTheNode marks what TestSituationsOnANodeOfItsOwn brings about.
var onTheNode = func(*testing.T) {}

// start publishes a batch; the returned function waits for its answers.
func start(p *Publisher, batch []broker.Envelope) func(t *testing.T) []broker.Result {
	type one struct {
		i int
		r broker.Result
	}
	answers := make(chan one, len(batch))
	p.Publish(context.Background(), batch, func(i int, r broker.Result) { answers <- one{i, r} })
	return func(t *testing.T) []broker.Result {
		t.Helper()
		results := make([]broker.Result, len(batch))
		for range batch {
			select {
			case a := <-answers:
				results[a.i] = a.r
			case <-time.After(patience):
				t.Fatalf("answers are missing after %s", patience)
			}
		}
		return results
	}
}

// cutShort publishes a message, whose context ends once it is on its way.
func cutShort(t *testing.T, p *Publisher, m broker.Envelope) broker.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan broker.Result, 1)
	p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) { answer <- r })
	p.untilSent(t, 1)
	cancel()
	return <-answer
}

// untilSent waits until n messages are on the wire without a confirmation.
func (p *Publisher) untilSent(t *testing.T, n int) {
	t.Helper()
	until(t, "messages are on their way", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		written := 0
		if p.link != nil {
			for _, l := range p.link.lanes {
				for _, e := range l.entries {
					if e.confirm != nil {
						written++
					}
				}
			}
		}
		return written >= n
	})
}

func TestEachSituationOnARealServer(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/rabbitmq.md", rows(), *update)
}

func TestJudgeGoesByTheCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		text string
		want situation
	}{
		{404, "NOT_FOUND - no exchange 'x' in vhost '/'", noExchange},
		{403, "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'u'", permissionDenied},
		{406, "PRECONDITION_FAILED - message size 10 is larger than configured max size 5", aboveLimit},
		{406, "PRECONDITION_FAILED - invalid message", refused},
		{311, "CONTENT_TOO_LARGE", aboveLimit},
		{405, "RESOURCE_LOCKED", refused},
	} {
		if got := (&Publisher{}).judge(&amqp.Error{Code: c.code, Reason: c.text, Server: true}); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.code, c.text, verdicts[got].means, verdicts[c.want].means)
		}
	}
}
