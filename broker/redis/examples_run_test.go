package redis_test

import (
	"os"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/outbox"
)

func TestTheExampleRuns(t *testing.T) {
	t.Parallel()
	server = os.Getenv("ONWARD_TEST_REDIS_URL")
	if server == "" {
		t.Skip(`ONWARD_TEST_REDIS_URL is not set: dev/services up redis && eval "$(dev/services env redis)"`)
	}
	o, err := goredis.ParseURL(server)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(o)
	defer func() { _ = client.Close() }()
	stream = "example-" + outbox.NewID().String()
	ExampleDial()
	entries := client.XRange(t.Context(), stream, "-", "+").Val()
	client.Del(t.Context(), stream)
	if len(entries) != 1 || entries[0].Values["onward-key"] != "order-7" {
		t.Errorf("the stream has %v, want the message", entries)
	}
}
