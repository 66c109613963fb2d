package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// runRelay is the relay inside the service: it publishes what any service has written into this outbox, until ctx ends. It
// has connections of its own, so that many requests do not keep it from renewing its lease.
func runRelay(ctx context.Context, s settings) (err error) {
	pool, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.Open(ctx, pool, postgres.Config{Schema: s.schema})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	publisher, err := nats.Dial(s.nats, nats.Options{Name: "orders"}, nats.Config{Stream: s.stream})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close(context.WithoutCancel(ctx))) }()
	sink := relay.Sink{Name: "orders", Publisher: publisher}
	r, err := relay.New(relay.Config{Store: store, Sinks: []relay.Sink{sink}, Logger: slog.Default()})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
