package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/e2e/harness"
)

// Kafka is one broker with a topic of four partitions.
const (
	Kafka             = "kafka"
	KafkaTransactions = "kafka-transactions" // a sink that promises no duplicates to who reads what is committed
)

func isKafka(broker string) bool { return broker == Kafka || broker == KafkaTransactions }

// All topics go to one, because two partitions know no order between them; the poisoned one has a name that no topic can have.
const (
	kafkaTopic    = "chaos"
	kafkaTemplate = `{{if eq .Topic "` + poisonedTopic + `"}}no topic{{else}}` + kafkaTopic + `{{end}}`
)

// openKafka starts a broker with a door for each relay. It dates each record itself.
func (b *broker) openKafka(ctx context.Context, maxMessage int32) (err error) {
	if b.kafka, err = harness.NewKafka(b.dir, mostRelays); err != nil {
		return err
	}
	b.server = b.kafka.Server
	patient, cancel := context.WithTimeout(ctx, 3*time.Minute) // it takes 3 s alone, and many times that on a busy machine
	defer cancel()
	if err := b.server.Start(patient); err != nil {
		return err
	}
	b.url = b.server.URL
	b.records, err = kgo.NewClient(kgo.SeedBrokers(strings.TrimPrefix(b.url, "kafka://")), kgo.ConsumeTopics(kafkaTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond), kgo.MetadataMinAge(50*time.Millisecond), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(b.isolation()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	create, topic := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = kafkaTopic, 4, 1
	for name, value := range map[string]string{"max.message.bytes": fmt.Sprint(maxMessage), "message.timestamp.type": "LogAppendTime"} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, kmsg.StringPtr(value)
		topic.Configs = append(topic.Configs, c)
	}
	create.Topics, create.TimeoutMillis = append(create.Topics, topic), 10_000
	answer, err := create.RequestWith(patient, b.records)
	if err == nil {
		err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	}
	if err != nil {
		return err
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.group.Go(func() {
		for ctx.Err() == nil {
			b.records.PollFetches(ctx).EachRecord(b.takeRecord)
		}
	})
	return nil
}

// isolation is that of the collector.
func (b *broker) isolation() kgo.IsolationLevel {
	if b.kind == KafkaTransactions {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

func (b *broker) takeRecord(r *kgo.Record) {
	b.collected.reach(r.Partition, r.Offset+1)
	if r.Attrs.IsControl() { // the end of a transaction
		return
	}
	text := func(name string) string {
		for _, h := range r.Headers {
			if h.Key == name {
				return string(h.Value)
			}
		}
		return ""
	}
	b.collected.add(Arrival{
		ID: text("onward-id"), Key: text("onward-key"), Epoch: text("onward-epoch"), Digest: digest(r.Value),
		Position: fmt.Sprintf("%d:%d", r.Partition, r.Offset), At: r.Timestamp,
	})
}

// completeTopic waits until all that the topic has was collected.
func (b *broker) completeTopic(ctx context.Context) error {
	for {
		r, one := kmsg.NewPtrListOffsetsRequest(), kmsg.NewListOffsetsRequestTopic()
		one.Topic = kafkaTopic
		for partition := range int32(4) {
			part := kmsg.NewListOffsetsRequestTopicPartition()
			part.Partition, part.Timestamp = partition, -1
			one.Partitions = append(one.Partitions, part)
		}
		if b.kind == KafkaTransactions {
			r.IsolationLevel = 1
		}
		r.ReplicaID, r.Topics = -1, append(r.Topics, one)
		answer, err := r.RequestWith(ctx, b.records)
		more := false
		if err == nil {
			for _, t := range answer.Topics {
				for _, p := range t.Partitions {
					err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
					reached := b.collected.reached(p.Partition)
					if err == nil && reached > p.Offset {
						return fmt.Errorf("partition %d was collected up to %d and ends at %d: it has lost some", p.Partition, reached, p.Offset)
					}
					more = more || reached < p.Offset
				}
			}
			if err == nil && !more {
				return nil
			}
		}
		if !pause(ctx, 20*time.Millisecond) {
			all, _ := b.collected.counts()
			return errors.Join(fmt.Errorf("%d messages were collected, the topic has more", all), ctx.Err(), err)
		}
	}
}

// door is the link of a relay: the broker names its address to who comes through it.
func (b *broker) door(ctx context.Context, relay int) (*Link, error) {
	d := b.kafka.Doors[relay]
	return newLinkAt(ctx, "kafka://"+d.Listens, d.Named)
}
