package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// BenchmarkKafka is one relay that empties an outbox into a topic of 12 partitions, beside a bare loop in the same run: it reads
// the same table in pages of 2,000, produces the same records with franz-go's own producer (idempotent, acks of all), and waits
// for each page's acknowledgements. Each iteration is a run of both, into topics of their own.
//
//	msg/s       of the relay, from its start to its end
//	bare-msg/s  of the bare loop
//	ratio       of the two
//	txn-msg/s   of the relay with transactions
//	txn-ratio   of the relay with and without
func BenchmarkKafka(b *testing.B) {
	url := os.Getenv("ONWARD_TEST_KAFKA_URL")
	if url == "" {
		b.Skip(`ONWARD_TEST_KAFKA_URL is not set: dev/services up kafka && eval "$(dev/services env)"`)
	}
	pool, n := newDatabase(b), messages(b)
	fill(b, pool, n)
	bareRead(b, pool, n)
	var bare, onward, exact time.Duration
	round := 0
	for b.Loop() {
		bare += bareProduce(b, pool, url, n)
		onward += drainToKafka(b, pool, url, n, kafka.Transactions{})
		exact += drainToKafka(b, pool, url, n, kafka.Transactions{ID: outbox.NewID().String(), Topic: "bench-progress"})
		round++
	}
	total := float64(n * round)
	b.ReportMetric(total/onward.Seconds(), "msg/s")
	b.ReportMetric(total/bare.Seconds(), "bare-msg/s")
	b.ReportMetric(bare.Seconds()/onward.Seconds(), "ratio")
	b.ReportMetric(total/exact.Seconds(), "txn-msg/s")
	b.ReportMetric(onward.Seconds()/exact.Seconds(), "txn-ratio")
	b.ReportMetric(0, "ns/op")
}

// newTopic makes a topic, which goes with the benchmark, and returns its name.
func newTopic(b *testing.B, url string) (string, *kgo.Client) {
	b.Helper()
	a, err := kafka.ParseURL(url)
	must(b, err)
	client, err := kgo.NewClient(kgo.SeedBrokers(a.Brokers...), kgo.DisableClientMetrics(), kgo.ProducerBatchCompression(kgo.NoCompression()))
	must(b, err)
	b.Cleanup(client.Close)
	create, topic := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprint("bench-", outbox.NewID()), 12, 1
	create.Topics, create.TimeoutMillis = append(create.Topics, topic), 10_000
	_, err = create.RequestWith(b.Context(), client)
	must(b, err)
	return topic.Topic, client
}

// dropTopic removes what a run has written.
func dropTopic(b *testing.B, client *kgo.Client, name string) {
	b.Helper()
	drop, topic := kmsg.NewPtrDeleteTopicsRequest(), kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	drop.Topics, drop.TopicNames, drop.TimeoutMillis = append(drop.Topics, topic), []string{name}, 10_000
	_, err := drop.RequestWith(b.Context(), client)
	must(b, err)
}

// bareProduce is the loop that somebody would write by hand, and how long it takes.
func bareProduce(b *testing.B, pool *pgxpool.Pool, url string, want int) time.Duration {
	b.Helper()
	topic, client := newTopic(b, url)
	defer dropTopic(b, client, topic)
	began, read := time.Now(), 0
	must(b, pool.AcquireFunc(b.Context(), func(c *pgxpool.Conn) error {
		partition, seq := -1, int64(0)
		for {
			rows, err := c.Query(b.Context(), query("bare"), partition, seq)
			if err != nil {
				return err
			}
			var page []*kgo.Record
			for rows.Next() {
				var r row
				if err := rows.Scan(r.columns()...); err != nil {
					return err
				}
				partition, seq = r.Partition, r.Seq
				r.Record.ID = outbox.ID(r.ID)
				e := broker.Envelope{Record: &r.Record, Epoch: 1, Lineage: "1"}
				record := &kgo.Record{Topic: topic, Key: []byte(r.Key), Value: r.Payload, Timestamp: r.CreatedAt}
				for name, value := range e.Headers() {
					record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
				}
				page = append(page, record)
			}
			if err := rows.Err(); err != nil || len(page) == 0 {
				return err
			}
			if err := client.ProduceSync(b.Context(), page...).FirstErr(); err != nil {
				return err
			}
			read += len(page)
		}
	}))
	if read != want {
		b.Fatalf("the bare loop produced %d messages, want %d", read, want)
	}
	return time.Since(began)
}

// drainToKafka runs a relay on a new sink until all is settled, and says how long all of it took.
func drainToKafka(b *testing.B, pool *pgxpool.Pool, url string, want int, of kafka.Transactions) time.Duration {
	b.Helper()
	topic, client := newTopic(b, url)
	defer dropTopic(b, client, topic)
	sink := "kafka-" + strings.TrimPrefix(topic, "bench-")
	began := time.Now()
	s, err := postgres.Open(b.Context(), pool, postgres.Config{})
	must(b, err)
	p, err := kafka.Dial(url, kafka.Options{}, kafka.Config{Transactions: of, CreateTopics: true, Wire: broker.WireConfig{Topic: topic}})
	must(b, err)
	r, err := relay.New(relay.Config{Store: s, Sinks: []relay.Sink{{Name: sink, Publisher: p}}})
	must(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	must(b, r.RunOnce(ctx))
	must(b, s.Close())
	must(b, p.Close(b.Context()))
	took := time.Since(began)
	if got := one[int](b, pool, `SELECT published FROM outbox_sinks WHERE name = $1`, sink); got != want {
		b.Fatalf("the relay settled %d messages, want %d", got, want)
	}
	return took
}
