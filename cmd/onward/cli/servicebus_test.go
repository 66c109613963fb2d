package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/servicebus"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// Messages go from PostgreSQL to a queue, in order and with their key as the session; what names a queue that is not there is a
// dead letter, and requeued once the queue is made it arrives.
func TestRelayPublishesToServiceBus(t *testing.T) {
	t.Parallel()
	peer := strings.TrimPrefix(os.Getenv("ONWARD_TEST_ASB_PEER_URL"), "servicebus://")
	if peer == "" {
		t.Skip(`ONWARD_TEST_ASB_PEER_URL is not set: start the peer with: dev/services up servicebus && eval "$(dev/services env)"`)
	}
	connection := "Endpoint=sb://" + peer + ";SharedAccessKeyName=onward;SharedAccessKey=c2VjcmV0LW9mLW9ud2FyZA==;UseDevelopmentEmulator=true"
	name := fmt.Sprintf("cli-%d", time.Now().UnixNano())
	queue, lost := name+".paid", name+".lost"
	makeQueue(t, peer, queue)
	d := newDatabase(t)
	c := d.console
	c.environ = append(append([]string{}, c.environ...), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=servicebus:",
		"ONWARD_SINKS__0__SERVICEBUS__CONNECTION_STRING="+connection, "ONWARD_SINKS__0__SERVICEBUS__SCHEDULE_HEADER=not-before")
	r := c.start(t, "relay")
	for n := range 5 {
		d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload, headers) VALUES ($1, 'order-1', 'T', convert_to($2, 'UTF8'), '{"not-before": "2026-01-02T03:04:05Z"}')`, queue, fmt.Sprint(n))
	}
	client, err := azservicebus.NewClientFromConnectionString(connection, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	for n, m := range consume(t, client, queue, 5) {
		if string(m.Body) != fmt.Sprint(n) || *m.SessionID != "order-1" || m.ApplicationProperties["onward-id"] != m.MessageID || m.ScheduledEnqueueTime.Year() != 2026 {
			t.Errorf("message %d is %s %+v", n, m.Body, m)
		}
	}

	d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'other', 'T', 'hello')`, lost)
	eventually(t, "what cannot go there is a dead letter", func() bool {
		return strings.Contains(d.run(t, "dead", "list", "-o", "json").out, `"code": "onward/unroutable"`)
	})
	makeQueue(t, peer, lost)
	if got := d.run(t, "dead", "requeue", "--yes", "--code", "onward/unroutable"); got.code != exitDone {
		t.Errorf("requeue: %+v", got)
	}
	if m := consume(t, client, lost, 1)[0]; string(m.Body) != "hello" {
		t.Errorf("it arrived as %s", m.Body)
	}
	if code := r.end(t); code != exitDone || strings.Contains(r.said(), "c2VjcmV0") {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

// makeQueue tells the peer of one.
func makeQueue(t *testing.T, peer, queue string) {
	t.Helper()
	conn, err := amqp.Dial(t.Context(), "amqp://"+peer, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := session.NewSender(t.Context(), "$peer", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.Send(t.Context(), amqp.NewMessage(fmt.Appendf(nil, `{"entity": %q}`, queue)), nil); err != nil {
		t.Fatal(err)
	}
}

// consume waits for n messages.
func consume(t *testing.T, client *azservicebus.Client, queue string, n int) (all []*azservicebus.ReceivedMessage) {
	t.Helper()
	receiver, err := client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for len(all) < n {
		ms, err := receiver.ReceiveMessages(ctx, n-len(all), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ms...)
	}
	return all
}

func TestServiceBusIsReachedAsItsSettingsSay(t *testing.T) {
	t.Parallel()
	load := func(set ...string) (*config.Config, error) {
		return config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{"database.url=postgres://u@h/x", "sinks[0].name=s"}, set...)})
	}
	const connection = "Endpoint=sb://h;SharedAccessKeyName=relay;SharedAccessKey=geheim=="
	c, err := load("sinks[0].url=servicebus:", "sinks[0].servicebus.connection_string="+connection, "sinks[0].servicebus.schedule_header=not-before",
		"sinks[0].publish_timeout=7s", "sinks[0].topic_template=orders", "sinks[0].key_template={{.ID}}")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%+v", serviceBusConfig(c.Sinks[0]))
	want := fmt.Sprintf("%+v", servicebus.Config{ScheduleHeader: "not-before", AckTimeout: 7 * time.Second, Wire: broker.WireConfig{Format: "raw", Topic: "orders", Key: "{{.ID}}"}})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if address, needsIdentity := c.Sinks[0].ServiceBusAddress(); address != connection || needsIdentity {
		t.Errorf("it connects to %s, identity %t", address, needsIdentity)
	}
	if c, err = load("sinks[0].url=servicebus://shop.servicebus.windows.net"); err != nil {
		t.Fatal(err)
	}
	if address, needsIdentity := c.Sinks[0].ServiceBusAddress(); address != "servicebus://shop.servicebus.windows.net" || !needsIdentity {
		t.Errorf("it connects to %s, identity %t", address, needsIdentity)
	}
	p, err := openServiceBus(c.Sinks[0]) // asks nobody before it has a message
	if err != nil {
		t.Fatal(err)
	}
	closing, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Close(closing); err != nil {
		t.Error(err)
	}
	for word, set := range map[string][]string{
		"no host":                 {"sinks[0].url=servicebus:"},
		"a key comes in":          {"sinks[0].url=servicebus://u:geheim@h"},
		"and so does the sink's":  {"sinks[0].url=servicebus://h", "sinks[0].servicebus.connection_string=" + connection},
		"is no connection string": {"sinks[0].url=servicebus:", "sinks[0].servicebus.connection_string=geheim"},
		"no SharedAccessKeyName":  {"sinks[0].url=servicebus:", "sinks[0].servicebus.connection_string=Endpoint=sb://h;SharedAccessKey=geheim"},
		"routing_key_template":    {"sinks[0].url=servicebus://h", "sinks[0].routing_key_template=x"},
		"is for servicebus":       {"sinks[0].url=discard:", "sinks[0].servicebus.schedule_header=x"},
	} {
		if _, err := load(set...); err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%v: %v, want %q without the secret", set, err, word)
		}
	}
}
