package servicebus

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

var update = flag.Bool("update", false, "write the golden files")

// What the tests of all brokers have in common.
const patience = brokertest.Patience

var (
	until    = brokertest.Until
	message  = brokertest.NewMessage
	messages = brokertest.NewMessages
	publish  = brokertest.Publish
	start    = brokertest.Start
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

// The keys that the peer knows.
const (
	fullKey   = "SharedAccessKeyName=onward;SharedAccessKey=c2VjcmV0LW9mLW9ud2FyZA=="
	listenKey = "SharedAccessKeyName=listener;SharedAccessKey=c2VjcmV0LW9mLWxpc3RlbmVy"
)

// peer is what stands for the service: the one that all tests share, or one of a test's own.
type peer struct {
	tb   testing.TB
	host string // and port

	dir string
	cmd *exec.Cmd
	log bytes.Buffer
}

// commonPeer is shared; each test has entities of its own there.
func commonPeer(tb testing.TB) *peer {
	tb.Helper()
	u := os.Getenv("ONWARD_TEST_ASB_PEER_URL")
	if u == "" {
		tb.Skip(`ONWARD_TEST_ASB_PEER_URL is not set: dev/services up servicebus && eval "$(dev/services env servicebus)"`)
	}
	return &peer{tb: tb, host: strings.TrimPrefix(u, "servicebus://")}
}

// of is the same peer in another test.
func (x *peer) of(tb testing.TB) *peer { return &peer{tb: tb, host: x.host} }

// newPeer starts one that may be killed.
func newPeer(tb testing.TB) *peer {
	tb.Helper()
	if os.Getenv("ONWARD_TEST_ASB_PEER") == "" {
		tb.Skip(`ONWARD_TEST_ASB_PEER is not set: dev/services up servicebus && eval "$(dev/services env servicebus)"`)
	}
	x := &peer{tb: tb, host: fmt.Sprint("127.0.0.1:", brokertest.FreePort()), dir: tb.TempDir()}
	tb.Cleanup(x.kill)
	x.start()
	return x
}

func (x *peer) start() {
	x.tb.Helper()
	_, port, _ := strings.Cut(x.host, ":")
	x.cmd = exec.Command(os.Getenv("ONWARD_TEST_ASB_PEER"), port, x.dir) //nolint:gosec // the test's own peer
	x.cmd.Stdout, x.cmd.Stderr = &x.log, &x.log
	if err := x.cmd.Start(); err != nil {
		x.tb.Fatal(err)
	}
	until(x.tb, "the peer answers", func() bool {
		conn, err := amqp.Dial(x.tb.Context(), "amqp://"+x.host, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// kill ends it as a crash does.
func (x *peer) kill() {
	if x.cmd != nil {
		_ = x.cmd.Process.Kill()
		_ = x.cmd.Wait()
		x.cmd = nil
	}
}

// connection is the connection string for a key.
func (x *peer) connection(key string) string {
	return "Endpoint=sb://" + x.host + ";" + key + ";UseDevelopmentEmulator=true"
}

// settings are how an entity of the peer behaves; dev/servicebus-peer names them.
type settings map[string]any

// declare makes an entity, or changes how it behaves.
func (x *peer) declare(entity string, s settings) {
	x.tb.Helper()
	body := settings{"entity": entity}
	for name, value := range s {
		body[name] = value
	}
	text, err := json.Marshal(body)
	if err != nil {
		x.tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := amqp.Dial(ctx, "amqp://"+x.host, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err == nil {
		defer func() { _ = conn.Close() }()
		var session *amqp.Session
		if session, err = conn.NewSession(ctx, nil); err == nil {
			var sender *amqp.Sender
			if sender, err = session.NewSender(ctx, "$peer", nil); err == nil {
				err = sender.Send(ctx, amqp.NewMessage(text), nil)
			}
		}
	}
	if err != nil {
		x.tb.Fatal(err)
	}
}

// bench is one test's queue, and a consumer of it: Microsoft's client.
type bench struct {
	tb         testing.TB
	peer       *peer // nil: the real service
	connection string
	topic      string

	client   *azservicebus.Client
	receiver *azservicebus.Receiver
	mu       sync.Mutex
	got      []*azservicebus.ReceivedMessage
}

// newBench makes a queue at the peer.
func newBench(tb testing.TB, x *peer) *bench {
	tb.Helper()
	b := &bench{tb: tb, peer: x, connection: x.connection(fullKey), topic: fmt.Sprintf("t%08x.orders", rand.Uint32())}
	x.declare(b.topic, nil)
	b.consume()
	return b
}

// newRealBench makes a queue at the real service, with a connection string that may (Manage).
func newRealBench(tb testing.TB, connection string) *bench {
	tb.Helper()
	b := &bench{tb: tb, connection: connection, topic: fmt.Sprintf("onward-test-%08x", rand.Uint32())}
	c, err := admin.NewClientFromConnectionString(connection, nil)
	b.must(err)
	_, err = c.CreateQueue(tb.Context(), b.topic, nil)
	b.must(err)
	tb.Cleanup(func() {
		_, err := c.DeleteQueue(context.Background(), b.topic, nil)
		b.must(err)
	})
	b.consume()
	return b
}

func (b *bench) must(err error) {
	b.tb.Helper()
	if err != nil {
		b.tb.Fatal(err)
	}
}

func (b *bench) consume() {
	b.tb.Helper()
	var err error
	b.client, err = azservicebus.NewClientFromConnectionString(b.connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 1000, RetryDelay: 20 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond},
	})
	b.must(err)
	b.receiver, err = b.client.NewReceiverForQueue(b.topic, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	b.must(err)
	b.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.client.Close(ctx)
	})
}

// receive waits until n messages have come, and returns all.
func (b *bench) receive(ctx context.Context, n int) ([]*azservicebus.ReceivedMessage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.got) < n {
		ms, err := b.receiver.ReceiveMessages(ctx, 500, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: time.Millisecond})
		b.got = append(b.got, ms...)
		if err != nil {
			return b.got, err
		}
	}
	return b.got, nil
}

// read is what came, as brokertest has it.
func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	all, err := b.receive(ctx, n)
	out := make([]brokertest.Message, len(all))
	for i, m := range all {
		out[i].Payload = m.Body
		for name, value := range m.ApplicationProperties {
			out[i].Headers = append(out[i].Headers, brokertest.Header{Name: name, Value: fmt.Sprint(value)})
		}
		out[i].Headers = append(out[i].Headers, properties(m)...)
	}
	return out, err
}

// properties are the service's own slots of a message, as headers with names that no application property has.
func properties(m *azservicebus.ReceivedMessage) []brokertest.Header {
	slots := []brokertest.Header{{Name: "MessageID", Value: m.MessageID}}
	for _, s := range []struct {
		name  string
		value *string
	}{{"SessionID", m.SessionID}, {"CorrelationID", m.CorrelationID}, {"Subject", m.Subject}} {
		if s.value != nil {
			slots = append(slots, brokertest.Header{Name: s.name, Value: *s.value})
		}
	}
	return slots
}

// count is how many messages have come once one more was published.
func (b *bench) count(p *Publisher) int {
	b.tb.Helper()
	last := message(b.topic, "")
	want(b.tb, publish(b.tb, b.tb.Context(), p, last)[0], taken)
	ctx, cancel := context.WithTimeout(b.tb.Context(), patience)
	defer cancel()
	for n := 1; ; n++ {
		all, err := b.receive(ctx, n)
		b.must(err)
		for i, m := range all {
			if m.MessageID == last.ID.String() {
				return i
			}
		}
		n = len(all)
	}
}

func (b *bench) publisher(c Config) *Publisher { return b.publisherAt(b.connection, Options{}, c) }

// fixed publishes all messages to the bench's queue.
func (b *bench) fixed() *Publisher {
	return b.publisher(Config{Wire: broker.WireConfig{Topic: b.topic}})
}

func (b *bench) publisherAt(address string, o Options, c Config) *Publisher {
	b.tb.Helper()
	p, err := Dial(address, o, c)
	b.must(err)
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

// connected waits until a publisher is.
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
		return last == nil
	})
	return p
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

// newProxy makes one before the peer, and returns the connection string that leads through it.
func newProxy(tb testing.TB, x *peer) (*brokertest.Proxy, string) {
	tb.Helper()
	proxy := brokertest.NewProxy(tb, x.host)
	return proxy, (&peer{host: proxy.Address()}).connection(fullKey)
}
