package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Messages go from PostgreSQL to an exchange that is declared only once the relay waits for it; what no queue takes is a
// dead letter, and requeued once there is a binding it arrives.
func TestRelayPublishesToRabbitMQ(t *testing.T) {
	t.Parallel()
	url := os.Getenv("ONWARD_TEST_RABBITMQ_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_RABBITMQ_URL is not set: start the server with: dev/services up rabbitmq && eval "$(dev/services env)"`)
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cli.%d", time.Now().UnixNano())
	d := newDatabase(t)
	c := d.console
	c.environ = append(append([]string{}, c.environ...), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL="+url, "ONWARD_SINKS__0__RABBITMQ__EXCHANGE="+name,
		"ONWARD_SINKS__0__BREAKER__FIRST=50ms", "ONWARD_SINKS__0__BREAKER__MAX=100ms")
	r := c.start(t, "relay")
	d.write(t, name+".paid")
	eventually(t, "the relay says what is missing", func() bool { return strings.Contains(r.err.String(), "declare exchange name="+name) })

	if err := channel.ExchangeDeclare(name, "topic", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	q, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(q.Name, name+".paid", name, false, nil); err != nil {
		t.Fatal(err)
	}
	deliveries, err := channel.Consume(q.Name, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := func(topic string) {
		t.Helper()
		select {
		case m := <-deliveries:
			if m.RoutingKey != topic || m.MessageId == "" || m.MessageId != m.Headers["onward-id"] || m.Type != "T" || m.DeliveryMode != amqp.Persistent || string(m.Body) != "hello" {
				t.Errorf("got %+v", m)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nothing arrives; the relay said\n%s", r.said())
		}
	}
	want(name + ".paid")

	d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'other', 'T', 'hello')`, name+".lost")
	eventually(t, "what no queue takes is a dead letter", func() bool {
		return strings.Contains(d.run(t, "dead", "list", "-o", "json").out, `"code": "onward/unroutable"`)
	})
	if err := channel.QueueBind(q.Name, name+".lost", name, false, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.run(t, "dead", "requeue", "--yes", "--code", "onward/unroutable"); got.code != exitDone {
		t.Errorf("requeue: %+v", got)
	}
	want(name + ".lost")
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}
