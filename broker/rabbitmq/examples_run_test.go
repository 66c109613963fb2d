package rabbitmq_test

import (
	"os"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/outbox"
)

// The example publishes a message to an exchange of the test's own.
func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	servers = os.Getenv("ONWARD_TEST_RABBITMQ_URL")
	if servers == "" {
		t.Skip(`ONWARD_TEST_RABBITMQ_URL is not set: dev/services up rabbitmq && eval "$(dev/services env rabbitmq)"`)
	}
	conn, err := amqp.Dial(servers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	exchange = "example-" + outbox.NewID().String()
	if err := channel.ExchangeDeclare(exchange, "topic", false, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	queue, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(queue.Name, "orders.#", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	ExampleDial()
	m, found, err := channel.Get(queue.Name, true)
	if err != nil || !found || m.RoutingKey != "orders.paid" || m.Type != "OrderPaid" {
		t.Errorf("the queue has %+v (%v, %v), want the message", m, found, err)
	}
}
