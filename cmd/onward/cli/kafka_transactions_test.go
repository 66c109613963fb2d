package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// Transactions need a name of the sink and its database, and are for Kafka alone; their settings are nothing without them.
func TestNoDuplicatesToKafkaNeedsAName(t *testing.T) {
	t.Parallel()
	load := func(set ...string) (config.Sink, error) {
		c, err := config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{"database.url=postgres://u@h/x", "sinks[0].name=s"}, set...)})
		if err != nil {
			return config.Sink{}, err
		}
		return c.Sinks[0], nil
	}
	const toKafka, exact, named = "sinks[0].url=kafka://h", "sinks[0].no_duplicates=transactions", "sinks[0].kafka.transactional_id=orders"
	for _, c := range []struct {
		set  []string
		want kafka.Transactions
	}{
		{nil, kafka.Transactions{}},
		{[]string{exact, named}, kafka.Transactions{ID: "orders", Topic: "onward-progress", Timeout: 10 * time.Second}},
		{
			[]string{exact, named, "sinks[0].kafka.progress_topic=mine", "sinks[0].kafka.transaction_timeout=30s"},
			kafka.Transactions{ID: "orders", Topic: "mine", Timeout: 30 * time.Second},
		},
	} {
		s, err := load(append(c.set, toKafka)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := kafkaConfig(s); got.Transactions != c.want || got.Validate() != nil {
			t.Errorf("%v: %+v (%v), want %+v", c.set, got.Transactions, got.Validate(), c.want)
		}
	}
	for _, c := range []struct {
		fault string
		set   []string
	}{
		{"transactional_id: is missing", []string{toKafka, exact}},
		{`"transactions" is for kafka`, []string{"sinks[0].url=discard:", exact}},
		{`"compare" is for nats`, []string{toKafka, "sinks[0].no_duplicates=compare"}},
		{"transactional_id: goes with no_duplicates", []string{toKafka, named}},
		{"progress_topic: goes with no_duplicates", []string{toKafka, "sinks[0].kafka.progress_topic=mine"}},
		{"transaction_timeout: goes with no_duplicates", []string{toKafka, "sinks[0].kafka.transaction_timeout=30s"}},
		{"window.messages: is 20000", []string{toKafka, exact, named, "sinks[0].window.messages=20000"}},
		{"no topic's name", []string{toKafka, exact, named, "sinks[0].kafka.progress_topic=a/b"}},
		{"Transactions.Timeout is 20m", []string{toKafka, exact, named, "sinks[0].kafka.transaction_timeout=20m"}},
		{"Transactions.ID is", []string{toKafka, exact, "sinks[0].kafka.transactional_id=a/b"}},
	} {
		if _, err := load(c.set...); err == nil || !strings.Contains(fmt.Sprint(faultsOf(err)), c.fault) {
			t.Errorf("%v: %v, want %s", c.set, faultsOf(err), c.fault)
		}
	}
}
