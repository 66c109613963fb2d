package nats_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
)

// What a service knows of its broker. TestTheExamplesRun puts a server and a stream of its own here.
var (
	servers = "nats://n1:4222,nats://n2:4222"
	stream  = "ORDERS"
	topic   = "orders.paid"
)

// A publisher with a connection of its own. A relay takes it as the Publisher of a sink; this is what a relay does with it.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	publisher, err := nats.Dial(servers, nats.Options{Name: "shop"}, nats.Config{Stream: stream})
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = publisher.Close(ctx) }()
	message := outbox.Message{ID: outbox.NewID(), Topic: topic, Type: "OrderPaid", Key: "order-7", Payload: []byte(`{"total":1250}`)}
	for answered := false; !answered; {
		answer := make(chan broker.Result, 1)
		publisher.Publish(ctx, []broker.Envelope{{Record: &outbox.Record{Message: message}}}, func(_ int, r broker.Result) { answer <- r })
		r := <-answer
		fmt.Println(r.Outcome, r.Position, r.Err)
		answered = r.Outcome == broker.Accepted || r.Outcome == broker.Duplicate || r.Outcome == broker.Rejected || ctx.Err() != nil
		if !answered { // Unavailable while it connects, Uncertain where an answer was lost: the same message, with the same id
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// A publisher on a connection that the service has anyway, opened by Connect so that it is fit for one.
func ExampleNewPublisher() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := nats.Connect(servers, nats.Options{Name: "shop"})
	if err != nil {
		log.Panic(err)
	}
	defer conn.Close()
	publisher, err := nats.NewPublisher(conn, nats.Config{Stream: stream, AckTimeout: 5 * time.Second})
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = publisher.Close(ctx) }()
	if err := publisher.Check(ctx); err != nil { // a relay waits for it, and says so
		fmt.Println(err, outbox.Hint(err))
	}
}
