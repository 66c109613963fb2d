package relay_test

import (
	"context"
	"fmt"
	"log"

	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/memstore"
)

// A relay on an outbox and a broker in memory. With PostgreSQL and JetStream only the store, the writer and the publisher
// are others: postgres.Open, postgres.NewWriter, nats.NewPublisher.
func ExampleRelay() {
	ctx, stop := context.WithCancel(context.Background())
	db, broker := memstore.New(memstore.Config{}), membroker.New(membroker.Config{})

	// a service writes its state and its messages in one transaction
	out := memstore.NewWriter(memstore.WriterConfig{})
	tx := db.Begin()
	for _, what := range []string{"OrderCreated", "OrderPaid"} {
		if _, err := out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "order-7", Type: what}); err != nil {
			log.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}

	// a relay publishes them
	r, err := relay.New(relay.Config{
		Store: db.Open(nil),
		Sinks: []relay.Sink{{Name: "orders", Publisher: broker.Publisher()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()

	for read := 0; read < 2; {
		messages, err := broker.Read(ctx, "orders", read)
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range messages {
			read++
			fmt.Println(m.Key, m.Headers[1].Value)
		}
	}
	stop() // finishes what is in flight, settles it, gives its leases back
	fmt.Println(<-done)
	// Output:
	// order-7 OrderCreated
	// order-7 OrderPaid
	// <nil>
}
