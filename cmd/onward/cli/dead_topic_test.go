package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/store/sqlite"
)

// A dead letter of JetStream is in the stream too, under its topic, with its cause; the next message of its key, which is let
// go on, has none.
func TestADeadLetterIsInItsTopicOfJetStream(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.create(t)
	file := filepath.Join(t.TempDir(), "orders.db")
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_DATABASE__AUTO_MIGRATE=true", "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__ON_DEAD=skip",
		"ONWARD_SINKS__0__URL=" + os.Getenv("ONWARD_TEST_NATS_URL"), "ONWARD_SINKS__0__NATS__STREAM=" + s.name, "ONWARD_SINKS__0__DEAD_TOPIC=" + s.name + `{{if ne .Type "Lost"}}.nowhere{{end}}`,
	}}
	relay := c.start(t, "relay")
	eventually(t, "the tables are made", func() bool { return c.run(t, "status").code == exitDone })
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, m := range [][2]string{{"elsewhere." + s.name, "Lost"}, {"elsewhere." + s.name, "LostTwice"}, {s.name, "Taken"}} {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES (?, 'k', ?, 'x')`, m[0], m[1]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are dead, and the third published", func() bool {
		out := c.run(t, "status", "-o", "json").out
		return strings.Contains(out, `"published": 1`) && strings.Contains(out, `"dead": 2`)
	})
	if code := relay.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	if said := relay.err.String(); strings.Count(said, "dead letter was not published to its topic") != 1 {
		t.Errorf("the one whose dead topic is nowhere is not told of once:\n%s", said)
	}
	if n := s.count(t); n != 2 {
		t.Fatalf("the stream has %d messages, want 2", n)
	}
	stream, err := s.js.Stream(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 2; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		h := m.Header
		if h.Get("onward-type") == "Taken" {
			if h.Get("onward-dead-id") != "" || h.Get("onward-dead-code") != "" {
				t.Errorf("a message that was taken has a cause: %v", h)
			}
			continue
		}
		if h.Get("onward-type") != "Lost" || h.Get("onward-dead-id") == "" || h.Get("onward-dead-id") == h.Get("onward-id") || h.Get("onward-dead-code") != "onward/unroutable" ||
			h.Get("onward-dead-topic") != "elsewhere."+s.name || h.Get("onward-dead-key") != "k" || h.Get("onward-dead-sink") != "orders" || h.Get("onward-dead-error") == "" {
			t.Errorf("the copy has %v", h)
		}
	}
}

func TestADeadTopicIsRefusedAtStart(t *testing.T) {
	t.Parallel()
	for what, set := range map[string][]string{
		`sinks[0].dead_topic: template: "{{.Nope}}" names .Nope`: {"sinks[0].dead_topic={{.Nope}}"},
		"sinks[0].dead_topic: is not for jsonl":                  {"sinks[0].dead_topic=dead", "sinks[0].format=cloudevents-structured", "sinks[0].source=/s"},
	} {
		_, err := config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{"database.url=sqlite:x", "sinks[0].name=s", "sinks[0].url=jsonl:"}, set...)})
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: %v, want %s", set, err, what)
		}
	}
}
