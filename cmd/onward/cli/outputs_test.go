package cli

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// settled takes out what differs from machine to machine.
func (d *database) settled(text string) string {
	text = strings.NewReplacer(d.schema+"."+d.prefix, "SCHEMA.outbox_", d.schema, "SCHEMA", d.prefix, "outbox_").Replace(text)
	for _, r := range []struct{ pattern, instead string }{
		{`PostgreSQL [0-9.]+`, "PostgreSQL N"},
		{`20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`, "TIME"},
		{`"(duration_ms|lag_ms)":[0-9.]+`, `"$1":0`},
		{`"(backlog|lag_ms)":(null|\d+)`, `"$1":0`},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.instead)
	}
	return text
}

// What the commands that set up write, from a schema without tables on; and what others say meanwhile.
func TestSettingUp(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	text := d.sessions(t,
		"status", "messages list", "dead requeue "+id(1), "migrate status", "migrate validate", "migrate status -o json",
		"migrate up --partitions 3", "migrate up --partitions 4 -q", "migrate up", "migrate up -o json", "migrate up -o jsonl -q", "migrate up --partitions 8",
		"migrate status", "migrate status -o json", "migrate status -o jsonl -q",
		"migrate validate", "migrate validate -o json", "migrate validate -o jsonl")
	d.exec(t, `ALTER TABLE outbox_parked ALTER COLUMN last_error DROP DEFAULT, ALTER COLUMN attempts DROP NOT NULL`)
	text += d.sessions(t, "migrate validate", "migrate validate -o json", "migrate validate -o jsonl -q")
	golden.Compare(t, "migrate", d.settled(text))
}

// What each kind of failure looks like, with its code: a database that is away, and one that lets nobody in.
func TestFailing(t *testing.T) {
	t.Parallel()
	away := console{environ: []string{
		"ONWARD_DATABASE__URL=postgres://app:topsecret@127.0.0.1:1/shop", "ONWARD_RELAY__LEASE=300ms", "ONWARD_RELAY__HEARTBEAT=100ms",
		"ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=nats://127.0.0.1:1", "ONWARD_SINKS__0__NATS__STREAM=ORDERS",
	}}
	text := away.sessions(t, "status", "status -o json", "messages list", "messages show "+id(1), "dead list", "dead requeue "+id(1), "sinks list", "partitions list", "relays list",
		"migrate up", "migrate status", "relay --once --silent", "relay --sink oders", "status --set database.url=sqlite:/no/such/file.db")
	golden.Compare(t, "away", text)
}

// What a relay that was refused says, and the lines of one that was not.
func TestRelayOutputs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.db")
	c := console{environ: []string{"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_SINKS__0__NAME=nothing", "ONWARD_SINKS__0__URL=discard:"}}
	if r := c.run(t, "migrate", "up"); r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	d := &database{console: c, schema: "no schema", prefix: "outbox_"}
	text := c.sessions(t, "relay --once --json --silent")
	first := c.start(t, "relay", "--no-leasing", "--silent", "--set", "relay.name=shop-1")
	eventually(t, "it runs", func() bool { return strings.Contains(c.run(t, "relays", "list", "-q").out, "shop-1") })
	text += c.sessions(t, "relay --once --silent", "relay --silent")
	if code := first.end(t); code != exitDone {
		t.Errorf("code %d", code)
	}
	text += c.sessions(t, "relay --json --set sinks[0].url=jsonl:", "relay --sink oders")
	text = regexp.MustCompile(`SQLite [0-9.]+`).ReplaceAllString(text, "SQLite N")
	text = regexp.MustCompile(` on [\w.-]+, and one`).ReplaceAllString(text, " on HOST, and one")
	golden.Compare(t, "relay", d.settled(strings.ReplaceAll(text, file, "orders.db")))
}

// The program's version, in each output.
func TestVersionOutputs(t *testing.T) {
	t.Parallel()
	text := console{}.sessions(t, "version", "version -o json", "version -o jsonl", "--version")
	v := version()
	for _, of := range [][2]string{{v.Version, "N"}, {v.Go, "GO"}, {v.Platform, "OS/ARCH"}} {
		text = strings.ReplaceAll(text, of[0], of[1])
	}
	golden.Compare(t, "version", gaps.ReplaceAllString(text, "  "))
}
