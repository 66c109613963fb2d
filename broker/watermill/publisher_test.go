package watermill

import (
	"context"
	"errors"
	"flag"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

const topic = "orders"

// bench is Watermill's publisher within the process, behind a decorator that fails on request, and what a subscriber got of it.
type bench struct {
	*gochannel.GoChannel

	mu      sync.Mutex
	down    error         // what Publish returns
	frozen  chan struct{} // Publish waits for it
	deaf    bool          // Publish, frozen, does not heed its message's context
	calls   int
	running int
	most    int // calls at once
	arrived []*message.Message
	grown   chan struct{}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{GoChannel: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{}), grown: make(chan struct{})}
	messages, err := b.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for m := range messages {
			b.mu.Lock()
			b.arrived = append(b.arrived, m)
			close(b.grown)
			b.grown = make(chan struct{})
			b.mu.Unlock()
			m.Ack()
		}
	})
	t.Cleanup(func() {
		_ = b.GoChannel.Close()
		reader.Wait()
	})
	return b
}

// poisonous is the metadata of a message that the decorator refuses.
const poisonous = "poison"

var errPoison = errors.New("poison")

// Publish is Watermill's, with what was asked for before it.
func (b *bench) Publish(topic string, messages ...*message.Message) error {
	b.mu.Lock()
	down, frozen, deaf := b.down, b.frozen, b.deaf
	b.calls++
	b.running++
	b.most = max(b.most, b.running)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.running--
	}()
	for _, m := range messages {
		if frozen != nil && deaf {
			<-frozen
		} else if frozen != nil {
			select {
			case <-frozen:
			case <-m.Context().Done():
				return m.Context().Err()
			}
		}
		switch m.Metadata.Get(poisonous) {
		case "":
		case "panic":
			panic("at the disco")
		default:
			return errPoison
		}
	}
	if down != nil {
		return down
	}
	return b.GoChannel.Publish(topic, messages...)
}

func (b *bench) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = err
}

func (b *bench) freeze(deaf bool) (thaw func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	frozen := make(chan struct{})
	b.frozen, b.deaf = frozen, deaf
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.frozen = nil
		close(frozen)
	}
}

func (b *bench) called() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	for {
		b.mu.Lock()
		all, grown := slices.Clone(b.arrived), b.grown
		b.mu.Unlock()
		if len(all) >= n {
			return translated(all), nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return translated(all), ctx.Err()
		}
	}
}

func translated(all []*message.Message) []brokertest.Message {
	ms := make([]brokertest.Message, len(all))
	for i, m := range all {
		ms[i].Payload = m.Payload
		ms[i].Headers = append(ms[i].Headers, brokertest.Header{Name: "UUID", Value: m.UUID})
		for name, value := range m.Metadata {
			ms[i].Headers = append(ms[i].Headers, brokertest.Header{Name: name, Value: value})
		}
	}
	return ms
}

func (b *bench) publisher(t *testing.T, c Config) *Publisher {
	t.Helper()
	p, err := NewPublisher(b, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(p) })
	return p
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("down")}

func (b *bench) check(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.down
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, keepsOrder := range map[string]bool{"one message of a key": false, "in order": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(t *testing.T) brokertest.Harness {
				t.Helper()
				b := newBench(t)
				c := Config{KeepsOrder: keepsOrder, Check: b.check}
				return brokertest.Harness{
					Topic: topic,
					Open:  func(t *testing.T) broker.Publisher { return b.publisher(t, c) },
					OpenWire: func(t *testing.T, w broker.WireConfig) broker.Publisher {
						wired := c
						wired.Wire = w
						return b.publisher(t, wired)
					},
					Style: broker.StyleRedis,
					Slots: func(e broker.Envelope) []brokertest.Header {
						return []brokertest.Header{{Name: "UUID", Value: e.ID.String()}}
					},
					Poison: func(e *broker.Envelope) { e.Record.Headers = map[string]string{poisonous: "yes"} },
					Read:   b.read,
					Stop:   func(*testing.T) { b.fail(errDown) },
					Start:  func(*testing.T) { b.fail(nil) },
					Freeze: func(*testing.T) func() { return b.freeze(false) },
				}
			})
		})
	}
}

// A call that does not return cannot be ended. Its message has its answer when the context ends, and no later message of its key
// is sent before the call has returned: what comes late comes before them.
func TestACallThatHangsHoldsItsKeyAlone(t *testing.T) {
	t.Parallel()
	for _, keepsOrder := range []bool{false, true} {
		b := newBench(t)
		p := b.publisher(t, Config{KeepsOrder: keepsOrder})
		thaw := b.freeze(true)
		ctx, cancel := context.WithCancel(t.Context())
		first := brokertest.NewMessage(topic, "k")
		waitFirst := brokertest.Start(t, ctx, p, first)
		brokertest.Until(t, "the call runs", func() bool { return b.called() == 1 })
		cancel()
		want(t, waitFirst()[0], contextEnded)

		b.mu.Lock() // later calls are not frozen
		b.frozen = nil
		b.mu.Unlock()
		ctx, cancel = context.WithCancel(t.Context())
		waitAgain := brokertest.Start(t, ctx, p, first)
		want(t, brokertest.Publish(t, t.Context(), p, brokertest.NewMessage(topic, "other"))[0], taken)
		cancel()
		want(t, waitAgain()[0], notSent)

		next := brokertest.NewMessage(topic, "k")
		waitNext := brokertest.Start(t, t.Context(), p, next)
		frozen := thaw
		frozen()
		want(t, waitNext()[0], taken)
		all, err := b.read(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{all[1].Value("UUID"), all[2].Value("UUID")}
		if w := []string{first.ID.String(), next.ID.String()}; len(all) != 3 || !slices.Equal(got, w) {
			t.Errorf("KeepsOrder %t: behind the other key %v arrived, want %v", keepsOrder, got, w)
		}
	}
}

func TestNoMoreCallsThanAskedForRunAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.publisher(t, Config{Concurrency: 3})
	thaw := b.freeze(false)
	wait := brokertest.Start(t, t.Context(), p, brokertest.NewMessages(20, topic)...)
	brokertest.Until(t, "three calls run", func() bool { return b.called() == 3 })
	thaw()
	for _, r := range wait() {
		want(t, r, taken)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.most != 3 || b.calls != 20 {
		t.Errorf("%d calls, %d at once, want 20 and 3", b.calls, b.most)
	}
}

// A message that is refused before it is sent has its answer at once; those in front of it of its key go out even so.
func TestOnlyWhatIsBehindARefusedMessageFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.publisher(t, Config{KeepsOrder: true, Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/shop"}})
	batch := make([]broker.Envelope, 5)
	for i, key := range []string{"k", "k", "k", "other", "k"} {
		batch[i] = brokertest.NewMessage(topic, key)
	}
	batch[2].Type = "\xff"
	thaw := b.freeze(false)
	wait := brokertest.Start(t, t.Context(), p, batch...)
	thaw()
	rs := wait()
	for i, s := range []situation{taken, taken, badText, taken, behind} {
		want(t, rs[i], s)
	}
}

// A relay may hand a message over again as soon as it has the answer to the last one of its key, before done has returned.
func TestWhatComesAgainAfterAFailureIsSent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.publisher(t, Config{KeepsOrder: true})
	bad, good := brokertest.NewMessage(topic, "k"), brokertest.NewMessage(topic, "k")
	bad.Record.Headers = map[string]string{poisonous: "yes"}
	again := make(chan broker.Result, 1)
	p.Publish(t.Context(), []broker.Envelope{bad, good}, func(i int, _ broker.Result) {
		if i == 1 {
			p.Publish(context.Background(), []broker.Envelope{good}, func(_ int, r broker.Result) { again <- r })
		}
	})
	want(t, <-again, taken)
}

func TestBadConfigurationIsRefusedWholly(t *testing.T) {
	t.Parallel()
	_, err := NewPublisher(nil, Config{Concurrency: -1, Style: 99, Wire: broker.WireConfig{Format: "xml", Key: "{{.Type}}"}})
	if !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Fatal(err)
	}
	for _, fault := range []string{"there is no publisher", "Concurrency is -1", "Style is 99", "format", "key_template"} {
		if !strings.Contains(err.Error(), fault) {
			t.Errorf("%v does not name %q", err, fault)
		}
	}
}

func TestDescribeNamesWhatIsNotTheDefault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if got := b.publisher(t, Config{}).Describe(); got != "" {
		t.Errorf("of the default: %q", got)
	}
	got := b.publisher(t, Config{KeepsOrder: true, Wire: broker.WireConfig{Topic: "shop.{{.Topic}}"}}).Describe()
	if got != "keeps_order=true topic_template=shop.{{.Topic}}" {
		t.Errorf("%q", got)
	}
}

// The caller's publisher stays open.
func TestCloseLeavesWatermillsPublisherOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	closeNow(b.publisher(t, Config{}))
	want(t, brokertest.Publish(t, t.Context(), b.publisher(t, Config{}), brokertest.NewMessage(topic, ""))[0], taken)
}
