// Command watch prints what a consumer of the orders receives, from the first message of the stream on, until Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker/nats"
)

func main() {
	address := flag.String("nats", os.Getenv("NATS_URL"), "NATS; default $NATS_URL")
	stream := flag.String("stream", "ORDERS", "JetStream stream")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := watch(ctx, os.Stdout, *address, *stream); err != nil {
		slog.Error("watch ends", "error", err)
		os.Exit(1)
	}
}

// watch reads the stream in its order until ctx ends.
func watch(ctx context.Context, out io.Writer, address, stream string) error {
	if address == "" {
		return errors.New("where is NATS? Set NATS_URL, or --nats")
	}
	nc, err := nats.Connect(address, nats.Options{Name: "orders watch"})
	if err != nil {
		return err
	}
	defer nc.Close()
	if !nc.IsConnected() {
		return errors.New("NATS does not answer; is it where NATS_URL or --nats says?")
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	for {
		m, err := consumer.Next(jetstream.FetchContext(ctx))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		h := m.Headers()
		_, err = fmt.Fprintf(out, "%s  %-12s  %s\n", h.Get("onward-id"), h.Get("onward-type"), m.Data())
		if err != nil {
			return err
		}
	}
}
