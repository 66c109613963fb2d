package harness

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Collector reads a stream, or a queue, from its beginning by a connection of its own.
type Collector struct {
	end      func() // of a queue; nil: it is a stream
	nc       *natsgo.Conn
	stream   jetstream.Stream
	consume  jetstream.ConsumeContext
	mu       sync.Mutex
	arrivals []Arrival
	distinct map[string]bool
	changed  chan struct{}
}

// CreateStream makes a stream for the subjects of a topic; dedup is its duplicate window.
func CreateStream(ctx context.Context, url, name string, subjects []string, dedup time.Duration) error {
	nc, err := natsgo.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects, Duplicates: dedup, Storage: jetstream.FileStorage})
	return err
}

// Collect starts to read.
func Collect(ctx context.Context, url, stream string) (*Collector, error) {
	nc, err := natsgo.Connect(url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	c := &Collector{nc: nc, distinct: map[string]bool{}, changed: make(chan struct{}, 1)}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if c.stream, err = js.Stream(ctx, stream); err != nil {
		return nil, err
	}
	consumer, err := c.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, err
	}
	c.consume, err = consumer.Consume(c.take)
	return c, err
}

func (c *Collector) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	h := m.Headers()
	a := Arrival{
		ID: h.Get("onward-id"), Key: h.Get("onward-key"), Position: meta.Sequence.Stream, At: meta.Timestamp,
		Epoch: h.Get("onward-epoch"), Relay: h.Get(relayHeader), Lineage: h.Get("onward-lineage"),
	}
	c.add(a)
}

func (c *Collector) add(a Arrival) {
	c.mu.Lock()
	c.arrivals = append(c.arrivals, a)
	c.distinct[a.ID] = true
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Distinct is how many different messages have arrived.
func (c *Collector) Distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.distinct)
}

// WaitFor waits until n different messages have arrived, as long as some still come within quiet.
func (c *Collector) WaitFor(ctx context.Context, n int, quiet time.Duration) error {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		if c.Distinct() >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("%d of %d messages arrived, and none for %v", c.Distinct(), n, quiet)
		case <-c.changed:
			timer.Reset(quiet)
		}
	}
}

// WaitForOne waits for a message of which want is true.
func (c *Collector) WaitForOne(ctx context.Context, patience time.Duration, want func(Arrival) bool) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for from := 0; ; {
		c.mu.Lock()
		found := slices.ContainsFunc(c.arrivals[from:], want)
		from = len(c.arrivals)
		c.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("the message that was waited for did not come within %v", patience)
		case <-c.changed:
		}
	}
}

// Arrivals is what has arrived, in the stream's order.
func (c *Collector) Arrivals() []Arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Arrival(nil), c.arrivals...)
}

// Close ends the reading.
func (c *Collector) Close() {
	if c.end != nil {
		c.end()
		return
	}
	c.consume.Stop()
	c.nc.Close()
}

// DeleteStream removes a stream.
func DeleteStream(ctx context.Context, url, name string) error {
	nc, err := natsgo.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return js.DeleteStream(ctx, name)
}
