package rabbitmq

import (
	"context"
	"strconv"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker"
)

// Messages of 512 bytes, 1,000 on their way, to a durable queue: by the publisher, and by a loop over the client alone.
func BenchmarkPublish(b *testing.B) {
	const inFlight = 1000
	payload := make([]byte, 512)
	b.Run("onward", func(b *testing.B) {
		s := newBench(b, commonURL(b))
		p := connected(b, s.publisher(Config{}))
		room := make(chan struct{}, inFlight)
		var group sync.WaitGroup
		for i := range b.N {
			room <- struct{}{}
			m := message(s.topic, strconv.Itoa(i%5000))
			m.Payload = payload
			group.Add(1)
			p.Publish(context.Background(), []broker.Envelope{m}, func(_ int, r broker.Result) {
				if r.Outcome != broker.Accepted {
					b.Errorf("%s: %v", r.Outcome, r.Err)
				}
				<-room
				group.Done()
			})
		}
		group.Wait()
	})
	b.Run("client", func(b *testing.B) {
		s := newBench(b, commonURL(b))
		channel, err := s.conn.Channel()
		if err != nil {
			b.Fatal(err)
		}
		if err := channel.Confirm(false); err != nil {
			b.Fatal(err)
		}
		waiting := make(chan *amqp.DeferredConfirmation, inFlight)
		var group sync.WaitGroup
		group.Go(func() {
			for c := range waiting {
				if !c.Wait() {
					b.Error("refused")
				}
			}
		})
		for i := range b.N {
			m := message(s.topic, strconv.Itoa(i%5000))
			headers := amqp.Table{}
			for name, value := range m.Headers() {
				headers[name] = value
			}
			c, err := channel.PublishWithDeferredConfirm(s.exchange, s.topic, true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, MessageId: m.ID.String(), Headers: headers, Body: payload,
			})
			if err != nil {
				b.Fatal(err)
			}
			waiting <- c
		}
		close(waiting)
		group.Wait()
	})
}
