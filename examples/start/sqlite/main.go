// Command sqlite is a shop on SQLite, with its relay inside (docs/getting-started.md).
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/sqlite"
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
	db, err := sqlite.OpenDB(ctx, os.Getenv("DATABASE_URL"), sqlite.FileConfig{Create: true})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if err := sqlite.Migrate(ctx, db, sqlite.MigrateConfig{}); err != nil { // the outbox's tables, where they are missing
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total_cents INTEGER NOT NULL)`); err != nil {
		return err
	}
	receipt, err := order(ctx, db, 1250)
	if err != nil {
		return err
	}
	slog.Info("committed: an order and its message", "receipt", receipt.String())
	return publish(ctx, db)
}

var out = sqlite.NewSQLWriter(sqlite.WriterConfig{})

// order writes the order and its message: both, or neither.
func order(ctx context.Context, db *sql.DB, cents int) (receipt outbox.Receipt, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return receipt, err
	}
	defer func() { _ = tx.Rollback() }() // of what was not committed
	var id int64
	if err := tx.QueryRowContext(ctx, `INSERT INTO orders (total_cents) VALUES (?) RETURNING id`, cents).Scan(&id); err != nil {
		return receipt, err
	}
	receipt, err = out.Write(ctx, tx, outbox.Message{
		Topic: "orders", Key: fmt.Sprintf("order-%d", id), Type: "OrderPlaced",
		ContentType: "application/json", Payload: fmt.Appendf(nil, `{"id": %d, "total_cents": %d}`, id, cents),
	})
	if err != nil {
		return receipt, err
	}
	return receipt, tx.Commit()
}

// publish is the relay, until ctx ends: it finishes then what is on its way.
func publish(ctx context.Context, db *sql.DB) (err error) {
	store, err := sqlite.Open(ctx, db, sqlite.Config{})
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
