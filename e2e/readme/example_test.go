package readme

import (
	"context"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// What ends the program; TestTheProgramOfTheREADME ends it once its message has arrived.
var ctx = context.Background()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func Example() {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	must(err)
	must(postgres.Migrate(ctx, pool, postgres.MigrateConfig{})) // in production a step of the deployment: onward migrate up

	out := postgres.NewWriter(postgres.WriterConfig{})
	must(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, state) VALUES ($1, 'open')`, "order-7"); err != nil {
			return err
		}
		_, err := out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "order-7", Type: "OrderCreated", Payload: []byte(`{"total":1250}`)})
		return err
	}))

	store, err := postgres.Open(ctx, pool, postgres.Config{})
	must(err)
	publisher, err := nats.Dial(os.Getenv("NATS_URL"), nats.Options{}, nats.Config{Stream: "ORDERS"})
	must(err)
	r, err := relay.New(relay.Config{Store: store, Sinks: []relay.Sink{{Name: "orders", Publisher: publisher}}})
	must(err)
	must(r.Run(ctx)) // until ctx ends: finishes what is in flight, settles it, gives its leases back
}
