package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// progress reads the progress topic: its first partition, from where it was read before to its end.
//
// Up to the last stable offset the broker says what was aborted. Behind it are transactions that may be open, of relays that
// died with one open too: what is committed there is told by the markers that end transactions, so that nobody waits for the
// end of another one's.
type progress struct {
	p     *Publisher
	topic string
	next  int64 // all before is in base
	base  *view
	id    [16]byte // of the topic that was read
}

// fetchBytes is how much of the progress topic is read at once.
const fetchBytes = 8 << 20

// read returns what the progress topic says now: everything that was committed before the call.
func (g *progress) read(ctx context.Context) (*view, error) {
	leader, err := g.leader(ctx)
	if err != nil {
		return nil, err
	}
	end, err := g.end(ctx, leader)
	if err != nil {
		return nil, err
	}
	for g.next < end {
		rs, next, err := g.fetch(ctx, leader, g.next, true)
		if err != nil {
			return nil, err
		}
		for _, r := range rs {
			g.base.apply(entryOf(r))
		}
		if next == g.next {
			break // the last stable offset
		}
		g.next = next
	}
	return g.beyond(ctx, leader, end)
}

// beyond adds what is committed behind the last stable offset.
func (g *progress) beyond(ctx context.Context, leader *kgo.Broker, end int64) (*view, error) {
	v, open := g.base, map[int64][]entry{}
	for at := g.next; at < end; {
		rs, next, err := g.fetch(ctx, leader, at, false)
		if err != nil {
			return nil, err
		}
		if next == at {
			return nil, fmt.Errorf("kafka: topic %s ends at %d, before %d", g.topic, at, end)
		}
		at = next
		for _, r := range rs {
			switch {
			case !r.Attrs.IsControl() && r.Attrs.IsTransactional():
				open[r.ProducerID] = append(open[r.ProducerID], entryOf(r))
			case isCommit(r):
				if v == g.base {
					v = g.base.clone()
				}
				for _, e := range open[r.ProducerID] {
					v.apply(e)
				}
				fallthrough
			default:
				delete(open, r.ProducerID)
			}
		}
	}
	return v, nil
}

func entryOf(r *kgo.Record) entry { return entry{string(r.Key), r.Value} }

// isCommit reports whether a control record ends a transaction that counts.
func isCommit(r *kgo.Record) bool {
	return r.Attrs.IsControl() && len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 1
}

func (v *view) clone() *view {
	c := &view{v.name, map[int]map[string]string{}, maps.Clone(v.now), maps.Clone(v.old)}
	for p, ids := range v.owners {
		c.owners[p] = maps.Clone(ids)
	}
	return c
}

// leader is the broker that has the topic's first partition.
func (g *progress) leader(ctx context.Context) (*kgo.Broker, error) {
	d, err := g.p.describeProgress(ctx, g.topic)
	if err != nil {
		return nil, err
	}
	g.p.mu.Lock()
	t := g.p.topic(g.topic)
	g.p.learn(t, d)
	g.p.release()
	for _, one := range d.Partitions {
		if one.Partition == 0 && one.Leader >= 0 {
			if d.TopicID != g.id { // made anew, or never read
				g.id, g.next, g.base = d.TopicID, 0, newView(g.base.name)
			}
			return g.p.client.Broker(int(one.Leader)), nil
		}
	}
	return nil, fmt.Errorf("topic %s: %w", g.topic, errNoLeader)
}

// describeProgress asks for the progress topic, and makes it where that is asked for and it is missing.
func (p *Publisher) describeProgress(ctx context.Context, name string) (description, error) {
	found, err := p.metadata(ctx, []string{name})
	if err != nil {
		return description{}, &failure{notConnected, fmt.Errorf("kafka: ask for topic %s: %w", name, err)}
	}
	d := found[name]
	err = kerr.ErrorForCode(d.ErrorCode)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && p.cfg.CreateTopics {
		err = errors.Join(err, p.createProgress(ctx, name))
	}
	if err != nil || len(d.Partitions) == 0 {
		return d, noProgressTopic(name, err)
	}
	return d, nil
}

// createProgress makes the progress topic: one partition, compacted, in segments so small that old records go soon.
func (p *Publisher) createProgress(ctx context.Context, name string) error {
	r := kmsg.NewPtrCreateTopicsRequest()
	r.TimeoutMillis = int32(askTime / time.Millisecond)
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, 1, -1
	for setting, value := range map[string]string{"cleanup.policy": "compact", "segment.bytes": "16777216"} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = setting, &value
		t.Configs = append(t.Configs, c)
	}
	r.Topics = append(r.Topics, t)
	answer, err := r.RequestWith(ctx, p.client)
	if err == nil && len(answer.Topics) > 0 {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

func noProgressTopic(topic string, cause error) error {
	return &outbox.Error{
		Code: broker.CodeUnroutable, Op: "read progress", Detail: "topic " + topic + ", which keeps what transactions have published, cannot be read", Err: cause,
		Hint: "kafka-topics --create --topic " + topic + " --partitions 1 --replication-factor 3 --config cleanup.policy=compact --config min.insync.replicas=2 --config segment.bytes=16777216, " +
			"and let the relay's user read and write it; or create_topics: true",
	}
}

// end is the offset behind the last record of the topic.
func (g *progress) end(ctx context.Context, leader *kgo.Broker) (int64, error) {
	first, err := g.offset(ctx, leader, -2)
	if err != nil {
		return 0, err
	}
	g.next = max(g.next, first)
	return g.offset(ctx, leader, -1)
}

func (g *progress) offset(ctx context.Context, leader *kgo.Broker, at int64) (int64, error) {
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	t, part := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	part.Timestamp = at
	t.Topic, t.Partitions = g.topic, append(t.Partitions, part)
	r.Topics = append(r.Topics, t)
	answer, err := r.RequestWith(ctx, leader)
	if err != nil {
		return 0, fmt.Errorf("kafka: ask for the end of topic %s: %w", g.topic, err)
	}
	if len(answer.Topics) == 0 || len(answer.Topics[0].Partitions) == 0 {
		return 0, errStrangeAnswer
	}
	one := answer.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(one.ErrorCode); err != nil {
		return 0, fmt.Errorf("kafka: ask for the end of topic %s: %w", g.topic, err)
	}
	return one.Offset, nil
}

// fetch reads from an offset on: what is committed, or everything and the ends of transactions. next is behind the last record.
func (g *progress) fetch(ctx context.Context, leader *kgo.Broker, from int64, committed bool) (rs []*kgo.Record, next int64, err error) {
	r := kmsg.NewPtrFetchRequest()
	r.MaxBytes, r.MinBytes, r.MaxWaitMillis, r.SessionEpoch = fetchBytes, 0, 0, -1
	isolation := kgo.ReadUncommitted()
	if committed {
		r.IsolationLevel, isolation = 1, kgo.ReadCommitted()
	}
	t, part := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	part.FetchOffset, part.PartitionMaxBytes = from, fetchBytes
	t.Topic, t.TopicID, t.Partitions = g.topic, g.id, append(t.Partitions, part)
	r.Topics = append(r.Topics, t)
	answer, err := r.RequestWith(ctx, leader)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
		return nil, from, fmt.Errorf("kafka: read topic %s: %w", g.topic, err)
	}
	if len(answer.Topics) == 0 || len(answer.Topics[0].Partitions) == 0 {
		return nil, from, errStrangeAnswer
	}
	one := &answer.Topics[0].Partitions[0]
	fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		KeepControlRecords: true, Offset: from, IsolationLevel: isolation, Topic: g.topic,
	}, one, kgo.DefaultDecompressor(), nil)
	if fetched.Err != nil {
		if errors.Is(fetched.Err, kerr.OffsetOutOfRange) { // it was deleted and made again, or lost its end
			g.next, g.base = 0, newView(g.base.name)
		}
		return nil, from, fmt.Errorf("kafka: read topic %s: %w", g.topic, fetched.Err)
	}
	for _, r := range fetched.Records {
		if !committed || !r.Attrs.IsControl() {
			rs = append(rs, r)
		}
	}
	return rs, max(next, from), nil
}

// unfit says why the progress topic is not fit to keep what was published, or nil.
func (p *Publisher) unfit(ctx context.Context, name string) error {
	r := kmsg.NewPtrDescribeConfigsRequest()
	one := kmsg.NewDescribeConfigsRequestResource()
	one.ResourceType, one.ResourceName, one.ConfigNames = kmsg.ConfigResourceTypeTopic, name, []string{"cleanup.policy"}
	r.Resources = append(r.Resources, one)
	answer, err := r.RequestWith(ctx, p.client)
	if err != nil {
		return fmt.Errorf("kafka: ask for the settings of topic %s: %w", name, err)
	}
	for _, one := range answer.Resources { // none where the user may not ask
		for _, c := range one.Configs {
			if policy := valueOf(c.Value); c.Name == "cleanup.policy" && strings.Contains(policy, "delete") {
				return &outbox.Error{
					Code: codeUnsafe, Op: "check topic " + name,
					Detail: "its cleanup.policy is " + policy + ": what was published is forgotten with its old records, and published again",
					Hint:   "kafka-configs --alter --topic " + name + " --add-config cleanup.policy=compact",
				}
			}
		}
	}
	return nil
}

// codeUnsafe is of a topic that does not keep what must be kept.
const codeUnsafe outbox.Code = "onward/broker-unsafe"
