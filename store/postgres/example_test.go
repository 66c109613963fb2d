package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
)

// The connections of a service. TestTheExamplesRun gives them a database.
var (
	ctx  = context.Background()
	pool *pgxpool.Pool
	db   *sql.DB
)

// The tables are made, or brought up to date, by a step of the deployment: `onward migrate up`, or this.
func ExampleMigrate() {
	err := postgres.Migrate(ctx, pool, postgres.MigrateConfig{
		Report: func(step postgres.Migration) { log.Printf("%s: %s", step, step.Locks) },
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Whatever a service changes and the message that says so are committed together, or neither is.
func ExampleWriter() {
	out := postgres.NewWriter(postgres.WriterConfig{Rules: outbox.Rules{RequireKey: []outbox.Pattern{"orders"}}})
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id, state) VALUES ($1, 'open')`, "order-7"); err != nil {
			return err
		}
		_, err := out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "order-7", Type: "OrderCreated", Payload: []byte(`{"total":1250}`)})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A message that rides in a batch costs no round trip of its own.
func ExampleWriter_Queue() {
	out := postgres.NewWriter(postgres.WriterConfig{})
	var receipt outbox.Receipt
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var b pgx.Batch
		b.Queue(`UPDATE orders SET state = 'paid' WHERE id = $1`, "order-7")
		m := outbox.Message{Topic: "orders", Key: "order-7", Type: "OrderPaid"}
		if err := out.Queue(ctx, &b, m, func(r outbox.Receipt) { receipt = r }); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("written as ", receipt)
}

// With database/sql, and what is built on it. Writing the same order again is the same message: its id comes from the order.
func ExampleSQLWriter() {
	out := postgres.NewSQLWriter(postgres.WriterConfig{IgnoreDuplicates: true})
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit
	for range 2 {
		_, err = out.Write(ctx, tx, outbox.Message{
			ID: outbox.IDFrom("orders/shipped", "order-7"), Topic: "orders", Key: "order-7", Type: "OrderShipped",
		})
		if err != nil {
			log.Panic(err)
		}
	}
	if err := tx.Commit(); err != nil {
		log.Panic(err)
	}
}

// A receipt says where its message stands, on any process that has it.
func ExampleAdmin_State() {
	admin, err := postgres.NewAdmin(pool, postgres.Config{})
	if err != nil {
		log.Fatal(err)
	}
	list, err := admin.Messages(ctx, store.Filter{Key: "order-7", Limit: 1})
	if err != nil || len(list.Messages) == 0 {
		log.Fatal("no message of order-7: ", err)
	}
	newest := list.Messages[0]
	receipt := outbox.Receipt{ID: newest.ID, Partition: newest.Partition, Seq: newest.Seq, Tx: newest.Tx} // mostly from Write
	state, err := admin.State(ctx, "orders", receipt)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(state)
}
