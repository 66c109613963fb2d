package watermill_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/onwardhq/onward/broker/watermill"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/memstore"
)

// A service publishes by Watermill's interface, within its transaction; a relay hands what was committed to a publisher of
// Watermill, here one within the process.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	bus := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, wm.NopLogger{})
	orders, err := bus.Subscribe(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}

	db, out := memstore.New(memstore.Config{}), memstore.NewWriter(memstore.WriterConfig{})
	tx := db.Begin()
	var publisher message.Publisher = watermill.NewTxPublisher(ctx, tx, out, watermill.TxConfig{KeyMetadata: "order"})
	for _, what := range []string{"OrderCreated", "OrderPaid"} {
		m := message.NewMessage(wm.NewUUID(), []byte(`{}`))
		m.Metadata.Set("order", "order-7")
		m.Metadata.Set("name", what)
		if err := publisher.Publish("orders", m); err != nil {
			log.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}

	to, err := watermill.NewPublisher(bus, watermill.Config{})
	if err != nil {
		log.Fatal(err)
	}
	r, err := relay.New(relay.Config{Store: db.Open(nil), Sinks: []relay.Sink{{Name: "bus", Publisher: to}}})
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	for range 2 {
		m := <-orders
		fmt.Println(m.Metadata.Get("onward-key"), m.Metadata.Get("onward-type"))
		m.Ack()
	}
	stop()
	fmt.Println(<-ended)
	_ = bus.Close()
	// Output:
	// order-7 OrderCreated
	// order-7 OrderPaid
	// <nil>
}

// In a service the writer is that of its store, postgres.NewSQLWriter or sqlite.NewSQLWriter.
func ExampleNewTxPublisher() {
	pay := func(ctx context.Context, db *sql.DB, out outbox.Writer[*sql.Tx], order string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // no-op after Commit
		if _, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'paid' WHERE id = $1`, order); err != nil {
			return err
		}
		publisher := watermill.NewTxPublisher(ctx, tx, out, watermill.TxConfig{
			Key: func(_ string, m *message.Message) string { return m.Metadata.Get("order") },
		})
		m := message.NewMessage(wm.NewUUID(), []byte(`{"total": 12}`))
		m.Metadata.Set("order", order)
		if err := publisher.Publish("orders", m); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = pay
	// Output:
}
