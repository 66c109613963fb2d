package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store/sqlite"
)

// The same commands serve an outbox in an SQLite file: made by migrate up, waited for by a relay that is there before it.
func TestAnOutboxInAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.db")
	c := console{environ: []string{"ONWARD_DATABASE__URL=sqlite:" + file}}
	s := newStream(t)
	s.create(t)
	if r := c.run(t, "status"); r.code != exitUnreachable || !strings.Contains(r.err, "onward/database-unavailable") {
		t.Errorf("without a file: %+v", r)
	}
	d := &database{console: c}
	relay := d.relayTo(s).start(t, "relay", "--json", "--set", "relay.name=shop")
	eventually(t, "the relay waits", func() bool { return strings.Contains(relay.err.String(), "waiting for the database") })
	if r := c.run(t, "migrate", "up", "--grants"); r.code != exitUsage || !strings.Contains(r.err, "a file has no roles") {
		t.Errorf("with grants: %+v", r)
	}
	if r := c.run(t, "migrate", "up"); r.code != exitDone || !strings.Contains(r.err, "up to date") {
		t.Fatalf("migrate up: %+v", r)
	}
	for _, command := range []string{"migrate status", "migrate validate", "migrate print", "status", "sinks list", "relays list", "partitions list", "messages list", "dead list"} {
		if r := c.run(t, strings.Fields(command)...); r.code != exitDone {
			t.Errorf("%s: %+v", command, r)
		}
	}
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES (?, 'k', 'T', 'hello'), ('nobody', '', 'T', x'00')`, s.name); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(relay.said())
		}
	}()
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	eventually(t, "the other one is a dead letter", func() bool { return strings.Contains(c.run(t, "dead", "list").out, "unroutable") })
	if r := c.run(t, "dead", "discard", "--topic", "nobody", "--reason", "a test", "--yes"); r.code != exitDone {
		t.Errorf("discard: %+v", r)
	}
	eventually(t, "the relay says so", func() bool { return strings.Contains(relay.out.String(), `"published":1`) })
	if code := relay.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	if r := c.run(t, "status", "-o", "json"); !strings.Contains(r.out, `"published": 1`) || !strings.Contains(r.out, `"backlog": 0`) || !strings.Contains(r.out, `"database": "SQLite`) {
		t.Errorf("in the end: %+v", r)
	}
}

// Whoever migrates makes the file first. A relay that waited for it does not end because its tables come a moment later.
func TestARelayThatWaitedForAFileWaitsForItsTables(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.db")
	c := console{environ: []string{"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_SINKS__0__NAME=nothing", "ONWARD_SINKS__0__URL=discard:"}}
	relay := c.start(t, "relay")
	eventually(t, "the relay waits", func() bool { return strings.Contains(relay.err.String(), "waiting for the database") })
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has the file open", func() bool {
		open, err := filepath.Glob("/proc/self/fd/*")
		return err == nil && slices.ContainsFunc(open, func(fd string) bool {
			name, err := os.Readlink(fd)
			return err == nil && name == file
		})
	})
	if r := c.run(t, "migrate", "up"); r.code != exitDone {
		t.Fatalf("migrate up: %+v", r)
	}
	eventually(t, "it starts", func() bool { return strings.Contains(relay.err.String(), "relay starts") })
	if code := relay.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	if r := c.run(t, "relay", "--set", "database.table_prefix=other_"); r.code != exitUsage || !strings.Contains(r.err, "onward/schema-missing") {
		t.Errorf("without tables, and not waited for: %+v", r)
	}
}
