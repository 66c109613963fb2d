package watermill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/watermill"
	"github.com/onwardhq/onward/e2e/harness"
)

// stream is one of a test's own, and a connection that looks at it.
type stream struct {
	tb    testing.TB
	url   string
	topic string
	js    jetstream.Stream
}

func needed(tb testing.TB, variable string) string {
	tb.Helper()
	value := os.Getenv(variable)
	if value == "" {
		tb.Skipf(`%s is not set: dev/services up && eval "$(dev/services env)"`, variable)
	}
	return value
}

func newStream(tb testing.TB, url string) *stream {
	tb.Helper()
	s := &stream{tb: tb, url: url, topic: fmt.Sprintf("w%08x.orders", rand.Uint32())}
	nc, err := natsgo.Connect(s.url)
	s.must(err)
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	s.must(err)
	name := strings.ToUpper(strings.ReplaceAll(s.topic, ".", "_"))
	s.js, err = js.CreateStream(tb.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{s.topic}, Duplicates: 100 * time.Millisecond})
	s.must(err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = js.DeleteStream(ctx, name)
	})
	return s
}

func (s *stream) must(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatal(err)
	}
}

// publisher is Watermill's for JetStream, at the address, and Onward's over it.
func (s *stream) publisher(url string, c watermill.Config) *watermill.Publisher {
	s.tb.Helper()
	nc, err := natsgo.Connect(url, natsgo.ReconnectBufSize(-1), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond), natsgo.ReconnectJitter(0, 0),
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {})) // the default one writes to stderr
	s.must(err)
	to, err := wmnats.NewPublisherWithNatsConn(nc, wmnats.PublisherPublishConfig{
		Marshaler: &wmnats.NATSMarshaler{}, SubjectCalculator: wmnats.DefaultSubjectCalculator,
		JetStream: wmnats.JetStreamConfig{ConnectOptions: []natsgo.JSOpt{natsgo.MaxWait(time.Second)}},
	}, wm.NopLogger{})
	s.must(err)
	c.Check = func(context.Context) error {
		if !nc.IsConnected() {
			return natsgo.ErrConnectionReconnecting
		}
		return nil
	}
	c.Outcome = outcome
	p, err := watermill.NewPublisher(to, c)
	s.must(err)
	s.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Close(ctx)
		_ = to.Close()
	})
	return p
}

// outcome knows JetStream's errors, which Watermill passes on.
func outcome(err error) broker.Outcome {
	var refused *natsgo.APIError
	switch {
	case errors.Is(err, natsgo.ErrReconnectBufExceeded): // there is no connection, and nothing is kept for later
		return broker.Unavailable
	case errors.Is(err, natsgo.ErrNoStreamResponse), errors.Is(err, natsgo.ErrMaxPayload), errors.As(err, &refused) && refused.Code == 400:
		return broker.Rejected
	}
	return 0
}

// read returns the messages of the stream, n at least.
func (s *stream) read(ctx context.Context, n int) (ms []brokertest.Message, err error) {
	for seq := uint64(1); ; {
		info, err := s.js.Info(ctx)
		if err != nil {
			return ms, err
		}
		for ; seq <= info.State.LastSeq; seq++ {
			m, err := s.js.GetMsg(ctx, seq)
			if err != nil {
				return ms, err
			}
			out := brokertest.Message{Payload: m.Data}
			for name, values := range m.Header {
				for _, value := range values {
					out.Headers = append(out.Headers, brokertest.Header{Name: name, Value: value})
				}
			}
			ms = append(ms, out)
		}
		if len(ms) >= n {
			return ms, nil
		}
	}
}

// newServer starts a server that takes the largest message of an outbox with its headers.
func newServer(t *testing.T) (address string) {
	t.Helper()
	needed(t, "ONWARD_TEST_NATS_SERVER")
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.conf")
	if err := os.WriteFile(rules, []byte("max_payload: 4MB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := harness.NewNATSAs(dir, nil, "-c", rules)
	if err == nil {
		ctx, cancel := context.WithTimeout(t.Context(), brokertest.Patience)
		defer cancel()
		err = server.Start(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(syscall.SIGKILL) })
	return server.URL
}

// The suite of every publisher, on a server, with a connection that breaks and falls silent.
func TestConformanceOverJetStream(t *testing.T) {
	t.Parallel()
	address := newServer(t)
	for name, keepsOrder := range map[string]bool{"one message of a key": false, "in order": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) brokertest.Harness {
				t.Helper()
				s := newStream(t, address)
				proxy := brokertest.NewProxy(t, strings.TrimPrefix(s.url, "nats://"))
				c := watermill.Config{KeepsOrder: keepsOrder, Style: broker.StyleNATS}
				return brokertest.Harness{
					Topic: s.topic,
					Open:  func(*testing.T) broker.Publisher { return s.publisher("nats://"+proxy.Address(), c) },
					OpenWire: func(_ *testing.T, w broker.WireConfig) broker.Publisher {
						wired := c
						wired.Wire = w
						return s.publisher("nats://"+proxy.Address(), wired)
					},
					Style: c.Style,
					Slots: func(e broker.Envelope) []brokertest.Header {
						return []brokertest.Header{{Name: wmnats.WatermillUUIDHdr, Value: e.ID.String()}}
					},
					Poison: func(e *broker.Envelope) { e.Record.Headers = map[string]string{natsgo.ExpectedStreamHdr: "another"} },
					Read:   s.read,
					Stop:   func(*testing.T) { proxy.Stop() },
					Start:  func(*testing.T) { proxy.Start() },
					Freeze: func(*testing.T) func() {
						proxy.Freeze()
						return proxy.Thaw
					},
				}
			})
		})
	}
}

// Whoever knows the broker behind says what its errors mean: here a message that no stream takes is a dead letter at once.
func TestOutcomeTellsWhatNobodyTakes(t *testing.T) {
	t.Parallel()
	s := newStream(t, needed(t, "ONWARD_TEST_NATS_URL"))
	p := s.publisher(s.url, watermill.Config{})
	rs := brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(s.topic, "a"), brokertest.NewMessage("nobody."+s.topic, "b"))
	if rs[0].Outcome != broker.Accepted || rs[1].Outcome != broker.Rejected {
		t.Errorf("%v, want accepted and rejected", rs)
	}
}
