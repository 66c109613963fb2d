package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/e2e/harness"
)

// RabbitMQ is a node with an exchange and one queue.
const RabbitMQ = "rabbitmq"

const (
	exchangeName = "chaos"
	queueName    = "chaos"
)

// openRabbitMQ starts a node. Its queue is a stream, which keeps all and numbers it, so that a collector whose connection was
// lost goes on where it was, and what comes twice was published twice.
func (b *broker) openRabbitMQ(ctx context.Context, maxMessage int32) (err error) {
	if b.node, err = harness.NewRabbitMQ(b.dir, fmt.Sprintf("max_message_size = %d", maxMessage)); err != nil {
		return err
	}
	b.server = b.node.Server
	patient, cancel := context.WithTimeout(ctx, 3*time.Minute) // it takes 5 s alone, and many times that on a busy machine
	defer cancel()
	if err := b.server.Start(patient); err != nil {
		return err
	}
	b.url = b.server.URL
	conn, err := amqp.Dial(b.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.ExchangeDeclare(exchangeName, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(queueName, true, false, false, false, amqp.Table{"x-queue-type": "stream"}); err != nil {
		return err
	}
	for _, topic := range topics {
		if err := channel.QueueBind(queueName, topic, exchangeName, false, nil); err != nil {
			return err
		}
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.group.Go(func() { b.collectQueue(ctx) })
	return nil
}

// collectQueue reads the stream to its end, and on; over one connection after the other.
func (b *broker) collectQueue(ctx context.Context) {
	r := queueReader{broker: b}
	for ctx.Err() == nil {
		if err := r.read(ctx); err != nil {
			pause(ctx, 50*time.Millisecond)
		}
	}
}

// queueReader knows how far the stream was read.
type queueReader struct {
	broker *broker
	next   int64     // offset
	lost   time.Time // when the connection was; zero: never, or all that was stored meanwhile was read
	mark   string
}

// read reads over one connection. What was stored while there was none is dated when it was lost, for the stream does not say: it
// ends with a mark that is published as the reading begins.
func (r *queueReader) read(ctx context.Context) error {
	conn, err := amqp.Dial(r.broker.server.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(500, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(queueName, "", false, false, false, false, amqp.Table{"x-stream-offset": r.next})
	if err != nil {
		return err
	}
	r.mark = fmt.Sprint(rand.Uint64())
	if err := channel.PublishWithContext(ctx, "", queueName, true, false, amqp.Publishing{Type: mark, MessageId: r.mark}); err != nil {
		return err
	}
	for d := range deliveries {
		if offset, ok := d.Headers["x-stream-offset"].(int64); ok && offset >= r.next { // it begins with the chunk that has the offset
			r.next = offset + 1
			r.take(&d, offset)
		}
		if err := d.Ack(false); err != nil {
			break
		}
	}
	if r.lost.IsZero() {
		r.lost = time.Now()
	}
	return errors.New("the connection was lost")
}

// take collects a message of the stream, or notes how far it was read.
func (r *queueReader) take(d *amqp.Delivery, offset int64) {
	switch d.Type {
	case mark:
		if d.MessageId == r.mark {
			r.lost = time.Time{}
		}
		return
	case lastOne:
		r.broker.ended.Store(true)
		return
	}
	at := r.lost
	if at.IsZero() {
		at = time.Now()
	}
	text := func(name string) string { value, _ := d.Headers[name].(string); return value }
	r.broker.collected.add(Arrival{
		ID: text("onward-id"), Key: text("onward-key"), Epoch: text("onward-epoch"), Digest: digest(d.Body), Position: fmt.Sprint(offset), At: at,
	})
}

// Types of messages of the collector's own.
const (
	mark    = "chaos-mark"
	lastOne = "chaos-last"
)

// completeQueue publishes a last message of its own, and waits until it was collected.
func (b *broker) completeQueue(ctx context.Context) error {
	conn, err := amqp.Dial(b.server.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	sent, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queueName, true, false, amqp.Publishing{Type: lastOne, DeliveryMode: amqp.Persistent})
	if err != nil {
		return err
	}
	if acked, err := sent.WaitContext(ctx); err != nil || !acked {
		return errors.Join(errors.New("the last message was not confirmed"), err)
	}
	for !b.ended.Load() {
		if !pause(ctx, 10*time.Millisecond) {
			return errors.Join(errors.New("the end of the stream was not collected"), ctx.Err())
		}
	}
	return nil
}

// alarm makes the broker take no messages, as when its disk or memory is nearly full, or ends that.
func (b *broker) alarm(ctx context.Context, raise bool) error {
	switch b.kind {
	case Redis:
		return b.fillMemory(ctx, raise)
	case Webhook:
		return b.refuse(alarmFile, raise)
	}
	limit := "50MB"
	if raise {
		limit = "900GB"
	}
	return b.node.Control(ctx, "set_disk_free_limit", limit)
}
