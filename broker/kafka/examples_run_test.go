package kafka_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/outbox"
)

func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	servers = os.Getenv("ONWARD_TEST_KAFKA_URL")
	if servers == "" {
		t.Skip(`ONWARD_TEST_KAFKA_URL is not set: dev/services up kafka && eval "$(dev/services env kafka)"`)
	}
	topic = "example-" + outbox.NewID().String()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.TrimPrefix(servers, "kafka://")), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	create := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, 1, 1
	create.Topics = append(create.Topics, one)
	if _, err := create.RequestWith(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	ExampleDial()
	records := client.PollFetches(t.Context()).Records()
	if len(records) != 1 || string(records[0].Key) != "order-7" || string(records[0].Value) != `{"total":1250}` {
		t.Errorf("the topic has %v, want the message", fmt.Sprint(records))
	}
}
