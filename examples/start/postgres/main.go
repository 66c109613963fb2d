// Command postgres is a shop on PostgreSQL, with its relay inside (docs/getting-started.md).
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("the shop ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.MigrateConfig{}); err != nil { // the outbox's tables, where they are missing
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total_cents bigint NOT NULL)`); err != nil {
		return err
	}
	receipt, err := order(ctx, pool, 1250)
	if err != nil {
		return err
	}
	slog.Info("committed: an order and its message", "receipt", receipt.String())
	return publish(ctx, pool)
}

var out = postgres.NewWriter(postgres.WriterConfig{})

// order writes the order and its message: both, or neither.
func order(ctx context.Context, pool *pgxpool.Pool, cents int) (receipt outbox.Receipt, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var id int64
		if err := tx.QueryRow(ctx, `INSERT INTO orders (total_cents) VALUES ($1) RETURNING id`, cents).Scan(&id); err != nil {
			return err
		}
		receipt, err = out.Write(ctx, tx, outbox.Message{
			Topic: "orders", Key: fmt.Sprintf("order-%d", id), Type: "OrderPlaced",
			ContentType: "application/json", Payload: fmt.Appendf(nil, `{"id": %d, "total_cents": %d}`, id, cents),
		})
		return err
	})
	return receipt, err
}

// publish is the relay, until ctx ends: it finishes then what is on its way.
func publish(ctx context.Context, pool *pgxpool.Pool) (err error) {
	store, err := postgres.Open(ctx, pool, postgres.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	publisher, err := nats.Dial(os.Getenv("NATS_URL"), nats.Options{}, nats.Config{Stream: "ORDERS"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	r, err := relay.New(relay.Config{Store: store, Sinks: []relay.Sink{{Name: "orders", Publisher: publisher}}, Logger: slog.Default()})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
