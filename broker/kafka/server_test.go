package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

// longWait is how long a test waits for what must come: a broker starts in two seconds, or in forty on a machine that is busy.
const longWait = time.Minute

// commonURL is the server that tests share; each makes topics of its own there.
func commonURL(tb testing.TB) string {
	tb.Helper()
	u := os.Getenv("ONWARD_TEST_KAFKA_URL")
	if u == "" {
		tb.Skip(`ONWARD_TEST_KAFKA_URL is not set: dev/services up kafka && eval "$(dev/services env kafka)"`)
	}
	return u
}

func seed(tb testing.TB, url string) string {
	tb.Helper()
	a, err := ParseURL(url)
	if err != nil {
		tb.Fatal(err)
	}
	return a.Brokers[0]
}

// until polls a condition.
func until(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.Now().Add(longWait)
	for tick := time.NewTicker(5 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s", what, longWait)
		}
	}
}

// bench is one test's topic on a server, with a client that looks at it.
type bench struct {
	tb     testing.TB
	url    string
	topic  string
	admin  *kgo.Client
	proxy  *proxy // nil: publishers connect directly
	txn    bool   // readers see what is committed alone, in topics of transactions
	reader *reader
}

// newBench makes a topic with a name of its own; settings are name=value.
func newBench(tb testing.TB, url string, partitions int, settings ...string) *bench {
	tb.Helper()
	b := prepareBench(tb, url)
	b.makeTopic(b.topic, partitions, settings...)
	return b
}

// prepareBench makes no topic yet.
func prepareBench(tb testing.TB, url string, options ...kgo.Opt) *bench {
	tb.Helper()
	b := &bench{tb: tb, url: url, topic: fmt.Sprintf("t%08x.orders", rand.Uint32())}
	options = append([]kgo.Opt{kgo.SeedBrokers(seed(tb, url)), kgo.MetadataMinAge(10 * time.Millisecond), kgo.DisableClientMetrics()}, options...)
	var err error
	if b.admin, err = kgo.NewClient(options...); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.admin.Close)
	return b
}

func (b *bench) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), longWait)
	b.tb.Cleanup(cancel)
	return ctx
}

func (b *bench) makeTopic(name string, partitions int, settings ...string) {
	b.tb.Helper()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(partitions), 1
	b.make(t, settings...)
	here := *b
	here.topic = name
	until(b.tb, "each partition of "+name+" has its leader", func() bool {
		ends, err := here.ends(b.context())
		return err == nil && len(ends) == partitions
	})
}

func (b *bench) make(t kmsg.CreateTopicsRequestTopic, settings ...string) {
	b.tb.Helper()
	r, name := kmsg.NewPtrCreateTopicsRequest(), t.Topic
	for _, s := range settings {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		setting, value, _ := strings.Cut(s, "=")
		c.Name, c.Value = setting, &value
		t.Configs = append(t.Configs, c)
	}
	r.Topics, r.TimeoutMillis = append(r.Topics, t), 10_000
	until(b.tb, "topic "+name+" is made", func() bool {
		answer, err := r.RequestWith(b.context(), b.admin)
		if err != nil {
			return false
		}
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
		if err != nil && !kerr.IsRetriable(err) && !errors.Is(err, kerr.TopicAlreadyExists) {
			b.tb.Fatal(err)
		}
		return err == nil || errors.Is(err, kerr.TopicAlreadyExists)
	})
	b.tb.Cleanup(func() { b.deleteTopic(name) })
}

func (b *bench) deleteTopic(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	r := kmsg.NewPtrDeleteTopicsRequest()
	t := kmsg.NewDeleteTopicsRequestTopic()
	t.Topic = &name
	r.Topics, r.TopicNames, r.TimeoutMillis = append(r.Topics, t), []string{name}, 2_000
	_, _ = r.RequestWith(ctx, b.admin)
}

// set changes a setting of the topic.
func (b *bench) set(setting, value string) {
	b.tb.Helper()
	r := kmsg.NewPtrIncrementalAlterConfigsRequest()
	one := kmsg.NewIncrementalAlterConfigsRequestResource()
	one.ResourceType, one.ResourceName = kmsg.ConfigResourceTypeTopic, b.topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value, c.Op = setting, &value, kmsg.IncrementalAlterConfigOpSet
	one.Configs = append(one.Configs, c)
	r.Resources = append(r.Resources, one)
	answer, err := r.RequestWith(b.context(), b.admin)
	if err == nil {
		err = kerr.ErrorForCode(answer.Resources[0].ErrorCode)
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// lower sets the topic's largest message, and waits until the broker goes by it. The publisher, of which the test makes no other
// use, learns of it.
func (b *bench) lower(p *Publisher, limit int) {
	b.tb.Helper()
	b.set("max.message.bytes", strconv.Itoa(limit))
	until(b.tb, "the limit is lower", func() bool {
		m := message(b.topic, "")
		m.Payload = make([]byte, limit)
		return publish(b.tb, b.tb.Context(), p, m)[0].Outcome == broker.Rejected
	})
}

// addPartitions makes the topic have so many.
func (b *bench) addPartitions(n int) {
	b.tb.Helper()
	r := kmsg.NewPtrCreatePartitionsRequest()
	t := kmsg.NewCreatePartitionsRequestTopic()
	t.Topic, t.Count = b.topic, int32(n)
	r.Topics, r.TimeoutMillis = append(r.Topics, t), 10_000
	answer, err := r.RequestWith(b.context(), b.admin)
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// behindProxy makes the bench's publishers connect through a proxy.
func (b *bench) behindProxy() *bench {
	b.proxy = newProxy(b.tb, seed(b.tb, b.url))
	return b
}

// publisher makes one with a client of its own.
func (b *bench) publisher(c Config, options ...kgo.Opt) *Publisher {
	b.tb.Helper()
	if b.proxy != nil {
		options = append(options, b.proxy.through())
	}
	p, err := Dial(b.url, Options{More: options}, c)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

// reader has read a topic from its beginning, with a connection of its own.
type reader struct {
	client *kgo.Client
	mu     sync.Mutex
	parts  map[int32][]*kgo.Record
	read   map[int32]int64 // the last offset
	count  int
}

// isolation is that of the bench's readers.
func (b *bench) isolation() kgo.IsolationLevel {
	if b.txn {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

func (b *bench) newReader() *reader {
	b.tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(seed(b.tb, b.url)), kgo.ConsumeTopics(b.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(10*time.Millisecond), kgo.MetadataMaxAge(time.Second), kgo.FetchMaxWait(100*time.Millisecond), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(b.isolation()), kgo.KeepControlRecords())
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(client.Close)
	return &reader{client: client, parts: map[int32][]*kgo.Record{}, read: map[int32]int64{}}
}

// ends are the offsets behind the last record of each partition.
func (b *bench) ends(ctx context.Context) (map[int32]int64, error) {
	meta := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &b.topic
	meta.Topics = append(meta.Topics, t)
	found, err := meta.RequestWith(ctx, b.admin)
	if err != nil {
		return nil, err
	}
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	if b.txn {
		r.IsolationLevel = 1
	}
	one := kmsg.NewListOffsetsRequestTopic()
	one.Topic = b.topic
	for _, p := range found.Topics[0].Partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp = p.Partition, -1
		one.Partitions = append(one.Partitions, part)
	}
	r.Topics = append(r.Topics, one)
	answer, err := r.RequestWith(ctx, b.admin)
	if err == nil && (len(answer.Topics) == 0 || len(one.Partitions) == 0) {
		err = kerr.UnknownTopicOrPartition
	}
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	for _, p := range answer.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return nil, err
		}
		ends[p.Partition] = p.Offset
	}
	return ends, nil
}

// records returns all that is in the topic: n at least, unless ctx ends.
func (b *bench) records(ctx context.Context, n int) (map[int32][]*kgo.Record, error) {
	if b.reader == nil {
		b.reader = b.newReader()
	}
	rd := b.reader
	rd.mu.Lock()
	defer rd.mu.Unlock()
	for {
		ends, err := b.ends(ctx)
		for err == nil && !rd.reached(ends) && ctx.Err() == nil {
			rd.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				rd.read[r.Partition] = r.Offset
				if !r.Attrs.IsControl() {
					rd.parts[r.Partition] = append(rd.parts[r.Partition], r)
					rd.count++
				}
			})
		}
		if err == nil && rd.count >= n {
			return rd.parts, nil
		}
		if ctx.Err() != nil {
			return rd.parts, ctx.Err()
		}
	}
}

func (rd *reader) reached(ends map[int32]int64) bool {
	for partition, end := range ends {
		if last, ok := rd.read[partition]; end > 0 && (!ok || last < end-1) {
			return false
		}
	}
	return true
}

// The suite sees what a record has beside its headers as two more.
const (
	slotKey  = "(record key)"
	slotTime = "(record time)"
)

// read returns the topic's messages: of one partition in its order, of several by their times.
func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	parts, err := b.records(ctx, n)
	rest := map[int32][]*kgo.Record{}
	for partition, rs := range parts {
		rest[partition] = rs
	}
	var ms []brokertest.Message
	for {
		next := int32(-1)
		for partition, rs := range rest {
			if len(rs) > 0 && (next < 0 || earlier(rs[0], rest[next][0]) < 0) {
				next = partition
			}
		}
		if next < 0 {
			return ms, err
		}
		ms = append(ms, arrived(rest[next][0]))
		rest[next] = rest[next][1:]
	}
}

func earlier(a, b *kgo.Record) int {
	return cmp.Or(a.Timestamp.Compare(b.Timestamp), cmp.Compare(header(a, "onward-seq"), header(b, "onward-seq")))
}

func header(r *kgo.Record, name string) int64 {
	n, _ := strconv.ParseInt(arrived(r).Value(name), 10, 64)
	return n
}

func arrived(r *kgo.Record) brokertest.Message {
	m := brokertest.Message{Payload: r.Value, Position: fmt.Sprintf("%d:%d", r.Partition, r.Offset)}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, brokertest.Header{Name: h.Key, Value: string(h.Value)})
	}
	if r.Key != nil {
		m.Headers = append(m.Headers, brokertest.Header{Name: slotKey, Value: string(r.Key)})
	}
	if r.Attrs.TimestampType() == 0 {
		m.Headers = append(m.Headers, brokertest.Header{Name: slotTime, Value: r.Timestamp.UTC().Format(time.RFC3339Nano)})
	}
	return m
}

// count is how many records the topic has.
func (b *bench) count() int {
	b.tb.Helper()
	var ends map[int32]int64
	until(b.tb, "the topic can be counted", func() (ok bool) {
		var err error
		ends, err = b.ends(b.context())
		return err == nil
	})
	n := 0
	for _, end := range ends {
		n += int(end)
	}
	return n
}

var numbers struct {
	sync.Mutex
	seq int64
}

// message makes one for a topic.
func message(topic, key string) broker.Envelope {
	numbers.Lock()
	defer numbers.Unlock()
	numbers.seq++
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Type: "Tested", ContentType: "text/plain", Payload: []byte("payload")},
			Seq:     numbers.seq, CreatedAt: time.Now(),
		},
		Epoch: 1, Lineage: "1", Attempt: 1,
	}
}

func messages(n int, topic string) []broker.Envelope {
	batch := make([]broker.Envelope, n)
	for i := range batch {
		batch[i] = message(topic, "")
	}
	return batch
}

// publish returns the answers to a batch, all of which must come.
func publish(tb testing.TB, ctx context.Context, p broker.Publisher, batch ...broker.Envelope) []broker.Result { //nolint:revive // tb first, as testing does
	tb.Helper()
	var mu sync.Mutex
	results, answered := make([]broker.Result, len(batch)), 0
	all := make(chan struct{})
	p.Publish(ctx, batch, func(i int, r broker.Result) {
		mu.Lock()
		defer mu.Unlock()
		if results[i].Outcome != 0 {
			tb.Errorf("message %d was answered twice: %v, %v", i, results[i], r)
		}
		results[i] = r
		if answered++; answered == len(batch) {
			close(all)
		}
	})
	select {
	case <-all:
	case <-time.After(longWait):
		tb.Fatalf("answers are missing after %s", longWait)
	}
	return results
}

// want compares one answer with a situation's row of the table.
func want(tb testing.TB, r broker.Result, s situation) {
	tb.Helper()
	v := verdicts[s]
	if r.Outcome != v.outcome || r.Code != v.code {
		tb.Errorf("got %s %s (%v), want %s %s: %s", r.Outcome, r.Code, r.Err, v.outcome, v.code, v.means)
	}
	if v.outcome > broker.Duplicate && r.Err == nil {
		tb.Errorf("%s without a cause", r.Outcome)
	}
}
