package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/store/postgres"
)

//go:embed schema.sql
var schema string

// prepare makes the service's own table and, with --migrate, what the messages need: the outbox and the stream. In
// production a deployment does the latter (`onward migrate up`), with rights that the service does not have.
func prepare(ctx context.Context, pool *pgxpool.Pool, s settings) error {
	if s.migrate {
		report := func(step postgres.Migration) { slog.Info("migrate", "step", step.String()) }
		if err := postgres.Migrate(ctx, pool, postgres.MigrateConfig{Schema: s.schema, Report: report}); err != nil {
			return err
		}
		if err := createStream(ctx, s); err != nil {
			return err
		}
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("make the table of orders: %w", err)
	}
	return nil
}

func createStream(ctx context.Context, s settings) error {
	nc, err := nats.Connect(s.nats, nats.Options{Name: "orders"})
	if err != nil {
		return err
	}
	defer nc.Close()
	if !nc.IsConnected() { // it goes on trying, but a stream is made now or not at all
		return fmt.Errorf("make the stream %s: NATS does not answer; is it where NATS_URL or --nats says?", s.stream)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("make the stream: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: s.stream, Subjects: []string{s.topic}})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // somebody made it his way: it stays as it is
		return fmt.Errorf("make the stream %s: %w", s.stream, err)
	}
	return nil
}
