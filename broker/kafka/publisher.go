// Package kafka publishes to topics of a Kafka cluster: acknowledged by all in-sync replicas, in order per key with many
// messages on their way, stored once by each call however often it has to be sent. docs/brokers/kafka.md says what each
// answer of the cluster means for a message.
package kafka

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config says how messages go. A message's topic is its Kafka topic, its key the record's key, unless Wire says otherwise.
type Config struct {
	// AckTimeout is how long a message waits for its acknowledgement before it is Uncertain; the context of Publish may end
	// it earlier. 0: 10 s; at least 100 ms.
	AckTimeout time.Duration
	// MaxPending is how many messages may be without an answer at once; more are Throttled. 0: 10,000.
	MaxPending int
	// Compression is how batches are compressed: none, gzip, snappy, lz4 or zstd. Empty: none.
	Compression string
	// Tombstone makes an empty payload a null record, which deletes its key from a compacted topic.
	Tombstone bool
	// CreateTopics makes a missing topic, with the cluster's default number of partitions and replicas. Otherwise a message
	// for one is answered Retry, with onward/unroutable.
	CreateTopics bool
	// Transactions make the publisher send in transactions, so that no message is there twice for readers that read what is
	// committed alone; the zero value: not.
	Transactions Transactions
	// Wire says how messages are written; the zero value is the raw format. Topic and Key are templates of the Kafka topic and
	// of the record's key. RoutingKey is refused: Kafka has none.
	Wire broker.WireConfig
}

// Transactions say under which names transactions are made.
type Transactions struct {
	// ID names the sink of one database among all that write to the cluster: transactional ids begin with it. 1 to 100 of
	// A-Z, a-z, 0-9, '.', '_' and '-'. Empty: no transactions.
	ID string
	// Topic is the compacted topic that keeps what is published and not settled. Several sinks may share it. Empty:
	// onward-progress.
	Topic string
	// Timeout is for how long a transaction may be open: readers wait so long for one whose relay died, unless another relay
	// takes its place before. 0: 10 s; from 1 s to 15 min, and no longer than the brokers' transaction.max.timeout.ms.
	Timeout time.Duration
}

// Faults are what is wrong, each in words.
func (t Transactions) Faults() (faults []string) {
	if t.ID == "" && t != (Transactions{}) {
		return []string{"Transactions.ID is missing: name this sink of this database"}
	}
	if t.ID != "" && (len(t.ID) > 100 || checkTopic(t.ID) != nil) {
		faults = append(faults, fmt.Sprintf("Transactions.ID is %q: want 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'", t.ID))
	}
	if t.Topic != "" && checkTopic(t.Topic) != nil {
		faults = append(faults, fmt.Sprintf("Transactions.Topic is %q, which is no topic's name", t.Topic))
	}
	if t.Timeout != 0 && (t.Timeout < time.Second || t.Timeout > 15*time.Minute) {
		faults = append(faults, fmt.Sprintf("Transactions.Timeout is %s: want 1s to 15m, or 0 for 10s", t.Timeout))
	}
	return faults
}

var codecs = map[string]kgo.CompressionCodec{
	"": kgo.NoCompression(), "none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// Compressions are the words that Config.Compression takes.
func Compressions() []string { return []string{"none", "gzip", "snappy", "lz4", "zstd"} }

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	if c.AckTimeout != 0 && c.AckTimeout < 100*time.Millisecond {
		faults = append(faults, fmt.Sprintf("AckTimeout is %s: want 100ms at least, or 0 for 10s", c.AckTimeout))
	}
	if c.MaxPending < 0 {
		faults = append(faults, fmt.Sprintf("MaxPending is %d: want 1 at least, or 0 for 10,000", c.MaxPending))
	}
	if _, ok := codecs[c.Compression]; !ok {
		faults = append(faults, fmt.Sprintf("Compression is %q: want one of %s", c.Compression, strings.Join(Compressions(), ", ")))
	}
	faults = append(faults, c.Transactions.Faults()...)
	for _, f := range c.Wire.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if c.Wire.RoutingKey != "" {
		faults = append(faults, "routing_key_template is for other brokers: Kafka has topics and keys")
	}
	return invalid("kafka publisher", faults)
}

func invalid(op string, faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: op, Detail: strings.Join(faults, "; ")}
}

func (c Config) withDefaults() Config {
	if c.AckTimeout == 0 {
		c.AckTimeout = 10 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 10_000
	}
	if c.Transactions.Topic == "" {
		c.Transactions.Topic = "onward-progress"
	}
	if c.Transactions.Timeout == 0 {
		c.Transactions.Timeout = 10 * time.Second
	}
	return c
}

// Publisher publishes to the topics of one cluster. It is safe for concurrent use.
//
// It encodes and sends record batches itself, over a client of franz-go: one batch of a partition at a time, and the same one
// again when its answer is lost, so that the broker stores it once. Its goroutines are those of requests on their way.
type Publisher struct {
	cfg        Config
	wire       *broker.Wire
	client     *kgo.Client
	own        bool // the client is ours to close
	compressor kgo.Compressor
	hash       kgo.TopicPartitioner
	topicAge   time.Duration

	mu        sync.Mutex
	now       time.Time // of the critical section, about
	lines     map[string]*line
	topics    map[string]*topic
	nodes     map[int32]*node
	dirty     map[*node]struct{} // they may have something to send
	calls     map[*call]struct{} // with messages without an answer
	answers   []pending
	answering bool // somebody gives them
	pending   int  // messages without an answer
	open      int  // messages whose done has not returned
	producer  *producer
	tx        *transactor // nil: no transactions
	needy     []*lane     // they wait for a producer
	wanted    []*topic
	asking    bool
	anyBroker int32 // one that answered
	brokers   int   // what that takes by default: its message.max.bytes; 0: not known
	closing   bool
	ended     bool // no goroutine begins any more

	idle     chan struct{} // closed when open is 0 while closing
	idleOnce sync.Once
	life     context.Context // of the requests
	endLife  context.CancelFunc
	group    sync.WaitGroup
	finished chan struct{} // closed when all has ended
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
	_ broker.Claimer   = (*Publisher)(nil)
)

// NewPublisher makes a publisher on the caller's client, which stays open when the publisher is closed. It uses the client's
// connections, not its producer: settings of that do not matter. The client must not be closed before the publisher.
func NewPublisher(client *kgo.Client, c Config) (*Publisher, error) {
	if client == nil {
		return nil, invalid("kafka publisher", []string{"the client is nil"})
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	compressor, err := kgo.DefaultCompressor(codecs[c.Compression])
	if err != nil {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "kafka publisher", Err: err}
	}
	wire, err := broker.NewWire(c.Wire, broker.StyleKafka)
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: c.withDefaults(), wire: wire, client: client, compressor: compressor, topicAge: topicAge,
		hash:  kgo.StickyKeyPartitioner(nil).ForTopic(""),
		lines: map[string]*line{}, topics: map[string]*topic{}, nodes: map[int32]*node{},
		dirty: map[*node]struct{}{}, calls: map[*call]struct{}{},
		idle: make(chan struct{}), finished: make(chan struct{}),
	}
	p.life, p.endLife = context.WithCancel(context.Background())
	if c.Transactions.ID != "" {
		p.tx = newTransactor(p)
		p.group.Go(p.tx.run)
	}
	return p, nil
}

// Dial makes a publisher with a client of its own, which Close closes. It returns at once, whether or not the cluster can be
// reached. See Connect for url and o.
func Dial(url string, o Options, c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	client, err := Connect(url, o)
	if err != nil {
		return nil, err
	}
	p, err := NewPublisher(client, c)
	if err != nil {
		client.Close()
		return nil, err
	}
	p.own = true
	return p, nil
}

// Capabilities: a pipeline, because a partition has one batch on its way, and what is behind a failed message is not sent.
// MaxBytes is of the smallest limit of the topics that were published to, before that the broker's default as Check saw it;
// 0 before. No Dedup: another call's copy of a message is stored again.
func (p *Publisher) Capabilities() broker.Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := 0
	for _, t := range p.topics {
		if t.limit > 0 && (limit == 0 || t.limit < limit) {
			limit = t.limit
		}
	}
	if limit == 0 {
		limit = p.brokers
	}
	c := broker.Capabilities{Pipeline: true, Positions: true}
	if p.tx != nil {
		c.Claims, c.Dedup = true, ledgerKeeps
	}
	if limit > 0 {
		c.MaxBytes = p.wire.MaxPayload(limit - recordRoom)
	}
	return c
}

// recordRoom is what a batch of one record comes to beside its payload and what the format reckons with: the batch, the lengths
// of 300 headers beyond their punctuation, and the record's key.
const recordRoom = batchOverhead + 2*recordOverhead + 2*300 + 1024

// Describe says which settings are not the defaults.
func (p *Publisher) Describe() string {
	var words []string
	if p.tx != nil {
		words = append(words, "no_duplicates=transactions")
	}
	if p.cfg.Tombstone {
		words = append(words, "tombstone=true")
	}
	if p.compressor != nil {
		words = append(words, "compression="+p.cfg.Compression)
	}
	if text := p.wire.Describe(); text != "" {
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

// Check asks the cluster whether it is there, and whether the relay's user may write.
func (p *Publisher) Check(ctx context.Context) error {
	p.mu.Lock()
	closed := p.closing
	p.mu.Unlock()
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check kafka"}
	if closed {
		e.Detail, e.Hint = "the publisher is closed", "open a new one"
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, min(p.cfg.AckTimeout, askTime))
	defer cancel()
	if _, err := p.metadata(ctx, nil); err != nil {
		e.Detail, e.Err = "the cluster does not answer", err
		e.Hint = "see that the brokers of the sink's url run, that this host reaches the addresses that they advertise, and that TLS, user and password are as they want them"
		return e
	}
	if _, why, err := p.newProducer(ctx, p.client); err != nil {
		e.Detail, e.Err = "the cluster gives no producer id", err
		e.Hint = "see whether the cluster is healthy"
		if why == notAllowed {
			e.Code, e.Hint = broker.CodePermission, "let the relay's user write: kafka-acls --add --allow-principal User:NAME --producer --topic TOPIC"
		}
		return e
	}
	if p.tx != nil {
		if err := p.checkTransactions(ctx); err != nil {
			return err
		}
	}
	p.mu.Lock()
	name := strconv.Itoa(int(p.anyBroker))
	p.mu.Unlock()
	limits := p.limits(ctx, kmsg.ConfigResourceTypeBroker, "message.max.bytes", []string{name})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.brokers = limits[name]
	return nil
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not. A client made by Dial is closed.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		if p.open == 0 {
			p.idleOnce.Do(func() { close(p.idle) })
		}
		go p.finish()
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
		p.mu.Lock()
		for c := range p.calls {
			p.expireLocked(c, context.Cause(ctx))
		}
		p.release()
	}
	p.endLife()
	select {
	case <-p.finished:
		return nil
	case <-ctx.Done():
		select { // both may be
		case <-p.finished:
			return nil
		default:
		}
		return ctx.Err()
	}
}

// finish frees what the publisher made.
func (p *Publisher) finish() {
	<-p.life.Done()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.group.Wait()
	if p.own {
		p.client.Close()
	}
	close(p.finished)
}
