// Command orders is a small service that writes its state and its messages in one transaction. Its README says how to
// run it with the relay inside, and with `onward relay` beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// settings are the flags.
type settings struct {
	listen, database, schema, nats, stream, topic string
	migrate, relay                                bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, readFlags()); err != nil {
		slog.Error("orders ends", "error", err)
		os.Exit(1)
	}
}

func readFlags() (s settings) {
	flag.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address of the HTTP API")
	flag.StringVar(&s.database, "database", os.Getenv("DATABASE_URL"), "PostgreSQL; default $DATABASE_URL")
	flag.StringVar(&s.schema, "schema", "public", "schema of the orders and of the outbox")
	flag.StringVar(&s.nats, "nats", os.Getenv("NATS_URL"), "NATS, for --relay and --migrate; default $NATS_URL")
	flag.StringVar(&s.stream, "stream", "ORDERS", "JetStream stream that takes the messages")
	flag.StringVar(&s.topic, "topic", "orders", "topic of the messages, and so their subject")
	flag.BoolVar(&s.migrate, "migrate", false, "make the outbox's tables and the stream where they are missing")
	flag.BoolVar(&s.relay, "relay", false, "run the relay inside this service")
	flag.Parse()
	return s
}

// check refuses what a terminal without the README's variables leaves empty.
func (s settings) check() error {
	if s.database == "" {
		return errors.New("where is the database? Set DATABASE_URL, or --database")
	}
	if s.nats == "" && (s.migrate || s.relay) {
		return errors.New("where is NATS? Set NATS_URL, or --nats")
	}
	return nil
}

// run serves until ctx ends.
func run(ctx context.Context, s settings) error {
	if err := s.check(); err != nil {
		return err
	}
	pool, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := prepare(ctx, pool, s); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	slog.Info("orders listens", "at", "http://"+listener.Addr().String(), "relay_inside", s.relay)
	return serve(ctx, listener, pool, s)
}

func connect(ctx context.Context, s settings) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.database)
	if err != nil {
		return nil, fmt.Errorf("read --database: %w", err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = s.schema
	return pgxpool.NewWithConfig(ctx, config)
}

// serve runs the API and, where it is asked for, the relay. The API ends first: its last messages go out with the relay,
// and what the relay leaves is published after the next start, because it is in the database.
func serve(ctx context.Context, listener net.Listener, pool *pgxpool.Pool, s settings) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	relayContext, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	relayEnded := make(chan error, 1)
	go func() {
		var err error
		if s.relay {
			if err = runRelay(relayContext, s); err != nil {
				stop(err) // a service whose relay cannot run says so at once
			}
		}
		relayEnded <- err
	}()
	server := &http.Server{Handler: newAPI(pool, s), ReadHeaderTimeout: 5 * time.Second}
	serverEnded := make(chan error, 1)
	go func() {
		err := server.Serve(listener)
		stop(err)
		serverEnded <- err
	}()
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(grace)
	stopRelay()
	if serving := <-serverEnded; !errors.Is(serving, http.ErrServerClosed) {
		err = errors.Join(err, serving)
	}
	return errors.Join(err, <-relayEnded)
}
