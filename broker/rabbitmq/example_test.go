package rabbitmq_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/rabbitmq"
	"github.com/onwardhq/onward/outbox"
)

// What a service knows of its broker. TestTheExampleRuns puts a server and an exchange of its own here.
var (
	servers  = "amqp://relay:secret@rabbit-1:5672/shop,amqp://relay:secret@rabbit-2:5672/shop"
	exchange = "orders"
)

// A relay takes the publisher of a sink; this is what a relay does with it.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	publisher, err := rabbitmq.Dial(servers, rabbitmq.Options{Name: "shop"}, rabbitmq.Config{Exchange: exchange})
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = publisher.Close(ctx) }()
	message := outbox.Message{ID: outbox.NewID(), Topic: "orders.paid", Type: "OrderPaid", Key: "order-7", Payload: []byte(`{"total":1250}`)}
	for answered := false; !answered; {
		answer := make(chan broker.Result, 1)
		publisher.Publish(ctx, []broker.Envelope{{Record: &outbox.Record{Message: message}}}, func(_ int, r broker.Result) { answer <- r })
		r := <-answer
		fmt.Println(r.Outcome, r.Err)
		answered = r.Outcome == broker.Accepted || r.Outcome == broker.Rejected || ctx.Err() != nil
		if !answered { // Unavailable while it connects, Uncertain where an answer was lost: the same message, with the same id
			<-time.After(100 * time.Millisecond)
		}
	}
}
