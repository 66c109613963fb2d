package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store/sqlite"
)

// The scheme of a sink's URL says what it is, and its block how: a file of lines that is left when it is large, standard output,
// or nothing at all.
func TestTheSchemeOfASinkSaysWhatItIs(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, lines := filepath.Join(folder, "orders.db"), filepath.Join(folder, "orders.jsonl")
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_DATABASE__AUTO_MIGRATE=true",
		"ONWARD_SINKS__0__NAME=lines", "ONWARD_SINKS__0__URL=jsonl:" + lines, "ONWARD_SINKS__0__JSONL__SYNC=true", "ONWARD_SINKS__0__JSONL__ROTATE_BYTES=2KiB",
		"ONWARD_SINKS__1__NAME=nothing", "ONWARD_SINKS__1__URL=discard:",
	}}
	relay := c.start(t, "relay", "--json")
	eventually(t, "the tables are made", func() bool { return c.run(t, "status").code == exitDone })
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for range 3 {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload, content_type) VALUES ('orders', 'k', 'T', json_object('text', hex(zeroblob(700))), 'application/json')`); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both sinks have all", func() bool {
		return strings.Count(c.run(t, "status", "-o", "json").out, `"published": 3`) == 2
	})
	if code := relay.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(files) < 2 {
		t.Errorf("files: %v, %v: want more than one, for each holds 2 KiB", files, err)
	}
	var all strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	if n := strings.Count(all.String(), `"topic":"orders"`); n != 3 || strings.Count(all.String(), "\n") != 3 {
		t.Errorf("%d messages in\n%s", n, all.String())
	}
	for what, set := range map[string][]string{
		"standard output":         {"relay", "--json", "--set", "sinks[0].url=jsonl:"},
		"something stands beside": {"relay", "--set", "sinks[1].url=discard:somewhere"},
		"is 10, the least":        {"relay", "--set", "sinks[0].jsonl.rotate_bytes=10"},
		"is for nats: sinks":      {"relay", "--set", "sinks[0].no_duplicates=compare"},
		"is for amqp: sinks":      {"relay", "--set", "sinks[0].rabbitmq.exchange=orders"},
		"is 101, the most is 100": {"relay", "--set", "sinks[1].url=amqp://b", "--set", "sinks[1].rabbitmq.channels=101"},
		"a fragment":              {"relay", "--set", "sinks[1].url=amqp://u:p@b1,amqp://b2/#x"},
		"rediss, servicebus, https, http, jsonl, discard": {"relay", "--set", "sinks[1].url=pigeon://b"},
		"names no file":          {"relay", "--set", "database.url=sqlite:"},
		"name the stream":        {"relay", "--set", "sinks[1].url=nats://b"},
		"unknown URL scheme":     {"relay", "--set", "database.url=mysql://x/y"},
		"is the name of sinks[0": {"relay", "--set", "sinks[1].name=lines"},
	} {
		if r := c.run(t, set...); r.code != exitUsage || !strings.Contains(r.err, what) {
			t.Errorf("%v: %+v, want %q", set, r, what)
		}
	}
}
