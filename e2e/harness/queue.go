package harness

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// CollectQueue makes a topic exchange of RabbitMQ with a queue for all of it, both of that name, and starts to read the queue, as
// its only consumer. Close removes them.
func CollectQueue(url, name string) (*Collector, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	deliveries, err := declare(conn, name)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &Collector{distinct: map[string]bool{}, changed: make(chan struct{}, 1), end: func() {
		if channel, err := conn.Channel(); err == nil {
			_, _ = channel.QueueDelete(name, false, false, false)
			_ = channel.ExchangeDelete(name, false, false)
		}
		_ = conn.Close()
	}}
	go func() { // until the connection ends
		position := uint64(0)
		for d := range deliveries {
			position++
			text := func(header string) string { value, _ := d.Headers[header].(string); return value }
			c.add(Arrival{
				ID: d.MessageId, Key: text("onward-key"), Position: position, At: time.Now(),
				Epoch: text("onward-epoch"), Relay: text(relayHeader), Lineage: text("onward-lineage"),
			})
		}
	}()
	return c, nil
}

func declare(conn *amqp.Connection, name string) (<-chan amqp.Delivery, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if _, err := channel.QueueDeclare(name, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if err := channel.QueueBind(name, "#", name, false, nil); err != nil {
		return nil, err
	}
	return channel.Consume(name, "", true, true, false, false, nil)
}
