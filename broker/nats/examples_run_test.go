package nats_test

import (
	"context"
	"os"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/outbox"
)

// The examples publish a message to a stream of the test's own.
func TestTheExamplesRun(t *testing.T) {
	t.Parallel()
	servers = os.Getenv("ONWARD_TEST_NATS_URL")
	if servers == "" {
		t.Skip(`ONWARD_TEST_NATS_URL is not set: start the server with: dev/services up nats && eval "$(dev/services env)"`)
	}
	conn, err := natsgo.Connect(servers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream = "EXAMPLE-" + outbox.NewID().String()
	topic = stream + ".paid"
	made, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(context.Background(), stream); err != nil {
			t.Error(err)
		}
	})
	ExampleNewPublisher()
	ExampleDial()
	info, err := made.Info(t.Context())
	if err != nil || info.State.Msgs != 1 {
		t.Errorf("the stream has %+v (%v), want 1 message", info, err)
	}
}
