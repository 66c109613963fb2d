// Command stream makes the stream ORDERS, or leaves it as it is; in production that is the operators' business.
package main

import (
	"context"
	"log/slog"
	"os"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	if err := makeStream(context.Background()); err != nil {
		slog.Error("there is no stream", "error", err)
		os.Exit(1)
	}
}

func makeStream(ctx context.Context) error {
	nc, err := natsgo.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	return err
}
