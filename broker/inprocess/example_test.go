package inprocess_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/inprocess"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/memstore"
)

// Messages of a service go to a function of the same service, once what they stand for is committed: in order per key, again after a
// failure, and to the dead letters where the function says that it never takes one.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	db, out := memstore.New(memstore.Config{}), memstore.NewWriter(memstore.WriterConfig{})
	tx := db.Begin()
	for _, what := range []string{"OrderCreated", "OrderPaid"} {
		if _, err := out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "order-7", Type: what}); err != nil {
			log.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}

	publisher, err := inprocess.NewPublisher(func(_ context.Context, m broker.Envelope) error {
		switch m.Type {
		case "OrderCreated":
			fmt.Println("pack", m.Key)
			return nil
		case "OrderPaid":
			fmt.Println("send", m.Key)
			stop()
			return nil
		}
		return inprocess.Reject(errors.New("nothing is done about " + m.Type))
	}, inprocess.Config{Concurrency: 4})
	if err != nil {
		log.Fatal(err)
	}
	r, err := relay.New(relay.Config{Store: db.Open(nil), Sinks: []relay.Sink{{Name: "packing", Publisher: publisher}}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// pack order-7
	// send order-7
	// <nil>
}
