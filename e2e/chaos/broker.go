package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onwardhq/onward/e2e/harness"
)

// The brokers that there are.
const (
	JetStream        = "jetstream"
	JetStreamCompare = "jetstream-compare" // a sink that promises no duplicates
	JSONLines        = "jsonl"
)

const streamName = "CHAOS"

// broker is where a run publishes, and a collector that reads it by a way of its own from the start.
type broker struct {
	kind       string
	dir        string // of its files
	log        string // what its server says, where it has no place of its own for that
	url        string // for relays, who go through links
	server     *harness.Server
	rules      string // file of the server's configuration
	nc         *natsgo.Conn
	stream     jetstream.Stream
	consume    jetstream.ConsumeContext
	collected  collected
	stop       context.CancelFunc
	group      sync.WaitGroup
	renamed    int
	node       *harness.Node // of RabbitMQ
	kafka      *harness.Kafka
	records    *kgo.Client // of Kafka's collector
	redis      *redis.Client
	maxMessage int32       // of Service Bus: bytes
	ended      atomic.Bool // its last message was collected
}

// collected is what has arrived. Safe for concurrent use.
type collected struct {
	mu       sync.Mutex
	arrivals []Arrival
	distinct map[string]bool
	ends     map[int32]int64 // of Kafka's partitions: how far they were collected
}

func (c *collected) reach(partition int32, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[int32]int64{}
	}
	c.ends[partition] = end
}

func (c *collected) reached(partition int32) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ends[partition]
}

func (c *collected) add(a Arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals = append(c.arrivals, a)
	c.distinct[a.ID] = true
}

func (c *collected) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.distinct[id]
}

func (c *collected) counts() (all, distinct int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.arrivals), len(c.distinct)
}

// openBroker makes one whose files are in dir, and collects from it.
func openBroker(ctx context.Context, kind, dir, log string, maxMessage int32) (*broker, error) {
	b := &broker{kind: kind, dir: dir, log: log, collected: collected{distinct: map[string]bool{}}}
	if kind == JSONLines {
		b.url = "jsonl:" + filepath.Join(dir, "events.jsonl")
		ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
		b.group.Go(func() { b.follow(ctx) })
		return b, nil
	}
	if kind == Kafka || kind == KafkaTransactions {
		return b, b.openKafka(ctx, maxMessage)
	}
	if kind == RabbitMQ {
		return b, b.openRabbitMQ(ctx, maxMessage)
	}
	if kind == Redis {
		return b, b.openRedis(ctx)
	}
	if kind == Webhook {
		return b, b.openReceiver(ctx, maxMessage)
	}
	if kind == ServiceBus {
		return b, b.openServiceBus(ctx, maxMessage)
	}
	b.rules = filepath.Join(dir, "rules.conf")
	if err := b.allow(true); err != nil {
		return b, err
	}
	var err error
	if b.server, err = harness.NewNATSAs(dir, url.UserPassword("collector", "collector"), "-c", b.rules); err != nil {
		return b, err
	}
	if err := b.server.Start(ctx); err != nil {
		return b, err
	}
	b.url = strings.Replace(b.server.URL, "collector:collector", "relay:relay", 1)
	b.nc, err = natsgo.Connect(b.server.URL, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond), natsgo.IgnoreAuthErrorAbort(),
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {})) // the default one writes to stderr
	if err != nil {
		return b, err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return b, err
	}
	b.stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"chaos.>"}, Storage: jetstream.FileStorage, MaxMsgSize: maxMessage,
		Duplicates: 100 * time.Millisecond, // the shortest: what comes twice is to be seen
	})
	if err != nil {
		return b, err
	}
	consumer, err := b.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return b, err
	}
	b.consume, err = consumer.Consume(b.take, jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	return b, err
}

// allow writes the server's rules: whether relays may publish to the denied topic.
func (b *broker) allow(all bool) error {
	denied := ""
	if !all {
		denied = fmt.Sprintf("%s, \"%s.>\"", deniedTopic, deniedTopic)
	}
	return os.WriteFile(b.rules, fmt.Appendf(nil, `max_payload: 4MB
jetstream: {sync_interval: 1m}
authorization: {
  users: [
    {user: relay, password: relay, permissions: {publish: {allow: ">", deny: [%s]}, subscribe: ">"}}
    {user: collector, password: collector}
  ]
}
`, denied), 0o600)
}

// take collects a message of the stream.
func (b *broker) take(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	h := m.Headers()
	b.collected.add(Arrival{
		ID: h.Get("onward-id"), Key: h.Get("onward-key"), Epoch: h.Get("onward-epoch"), Digest: digest(m.Data()),
		Position: fmt.Sprint(meta.Sequence.Stream), At: meta.Timestamp,
	})
}

// complete waits until all that the broker has was collected.
func (b *broker) complete(ctx context.Context) error {
	if b.kind == JSONLines || b.kind == Webhook || b.kind == ServiceBus { // what was written before now is read in the round after the next
		pause(ctx, 10*followEvery)
		return nil
	}
	if b.kafka != nil {
		return b.completeTopic(ctx)
	}
	if b.kind == RabbitMQ {
		return b.completeQueue(ctx)
	}
	if b.kind == Redis {
		return b.completeStream(ctx)
	}
	for {
		info, err := b.stream.Info(ctx)
		all, _ := b.collected.counts()
		if err == nil && uint64(all) >= info.State.Msgs {
			if uint64(all) > info.State.Msgs {
				return fmt.Errorf("%d messages were collected, and the stream has %d: it has lost some", all, info.State.Msgs)
			}
			return nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return errors.Join(fmt.Errorf("%d messages were collected, the stream has more", all), ctx.Err(), err)
		}
	}
}

// restart ends the server and starts it again.
func (b *broker) restart(ctx context.Context, sig syscall.Signal) error {
	if err := b.server.Stop(sig); err != nil {
		return err
	}
	return b.server.Start(ctx)
}

// deny refuses relays the denied topic, or takes it again.
func (b *broker) deny(ctx context.Context, refuse bool) error {
	switch b.kind {
	case Webhook:
		return b.refuse(denyFile, refuse)
	case ServiceBus:
		return b.denyQueue(ctx, refuse)
	}
	if err := b.allow(!refuse); err != nil {
		return err
	}
	return b.server.Signal(syscall.SIGHUP)
}

// rename gives the file that is written another name.
func (b *broker) rename() (string, error) {
	b.renamed++
	name := fmt.Sprintf("events.jsonl.%06d", b.renamed)
	return name, os.Rename(filepath.Join(b.dir, "events.jsonl"), filepath.Join(b.dir, name))
}

func (b *broker) close() {
	if b.stop != nil {
		b.stop()
	}
	b.group.Wait()
	if b.consume != nil {
		b.consume.Stop()
	}
	if b.nc != nil {
		b.nc.Close()
	}
	if b.records != nil {
		b.records.Close()
	}
	if b.redis != nil {
		_ = b.redis.Close()
	}
	if b.server != nil {
		_ = b.server.Stop(syscall.SIGKILL)
	}
}
