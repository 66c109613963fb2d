package kafka_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/outbox"
)

// What a service knows of its cluster. TestTheExampleRuns puts a cluster and a topic of its own here.
var (
	servers = "kafka://kafka-1:9092,kafka-2:9092"
	topic   = "orders.paid"
)

// A relay takes the publisher of a sink; this is what a relay does with it.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	publisher, err := kafka.Dial(servers, kafka.Options{Name: "shop"}, kafka.Config{Compression: "zstd"})
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = publisher.Close(ctx) }()
	message := outbox.Message{ID: outbox.NewID(), Topic: topic, Type: "OrderPaid", Key: "order-7", Payload: []byte(`{"total":1250}`)}
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
