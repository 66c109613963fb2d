package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/store/sqlite"
)

// One pass publishes what is there, leaves nobody registered, and says on stdout what it did; the next one finds nothing.
func TestRelayOnce(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	c := d.relayTo(s)
	d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) SELECT $1, 'k' || n % 7, 'T', 'hello' FROM generate_series(1, 500) n`, s.name)
	r := c.run(t, "relay", "--once", "--json", "--silent")
	if r.code != exitDone || r.err != "" || s.count(t) != 500 || !strings.Contains(r.out, `"settled":500`) {
		t.Errorf("%d messages arrived; %+v", s.count(t), r)
	}
	if r := c.run(t, "relay", "--once", "--no-leasing"); r.code != exitDone || !strings.Contains(r.err, `"msg":"one pass is done"`) || s.count(t) != 500 {
		t.Errorf("the next pass: %d messages; %+v", s.count(t), r)
	}
	if got := d.run(t, "status", "-o", "json"); !strings.Contains(got.out, `"backlog": 0`) || !strings.Contains(got.out, `"published": 500,`) || !strings.Contains(got.out, `"relays_live": 0`) {
		t.Errorf("status afterwards: %s", got.out)
	}
}

// A broker or a database that is away ends a pass with 5, and nothing is lost.
func TestRelayOnceGivesUp(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	c := d.relayTo(s)
	d.write(t, s.name)
	r := c.run(t, "relay", "--once", "--set", "sinks[0].url=nats://127.0.0.1:1", "--set", "sinks[0].publish_timeout=200ms", "--silent")
	if r.code != exitUnreachable || !strings.Contains(r.err, "onward/broker-unavailable") || !strings.Contains(r.err, "the broker took nothing for 300ms") ||
		!strings.Contains(r.err, "hint: what was not published stays in the outbox") || strings.Contains(r.err, "msg") {
		t.Errorf("broker away: %+v", r)
	}
	if got := d.run(t, "status", "-o", "json"); !strings.Contains(got.out, `"backlog": 1,`) || !strings.Contains(got.out, `"relays_live": 0`) {
		t.Errorf("status afterwards: %s", got.out)
	}
	r = c.run(t, "relay", "--once", "--set", "database.url=postgres://u@127.0.0.1:1/x", "--set", "relay.lease=300ms", "--set", "relay.heartbeat=50ms")
	if r.code != exitUnreachable || !strings.Contains(r.err, "postgres://***@127.0.0.1:1/x") {
		t.Errorf("database away: %+v", r)
	}
	if r := c.run(t, "relay", "--once"); r.code != exitDone || s.count(t) != 1 {
		t.Errorf("the next pass: %d messages; %+v", s.count(t), r)
	}
}

// A relay that does not share is alone: whoever comes second is refused at once.
func TestRelayNoLeasing(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	c := d.relayTo(s)
	for first, seconds := range map[string][]string{
		"relay --no-leasing": {"relay --no-leasing", "relay --once --no-leasing", "relay"},
		"relay":              {"relay --no-leasing", "relay --once --no-leasing"},
	} {
		r := c.start(t, append(strings.Fields(first), "--set", "relay.name=shop-1")...)
		eventually(t, "it runs", func() bool { return strings.Contains(d.run(t, "relays", "list", "-q").out, "shop-1") })
		for _, second := range seconds {
			if got := c.run(t, strings.Fields(second)...); got.code != exitRefused || !strings.Contains(got.err, "sink orders is served by relay shop-1") || !strings.Contains(got.err, "onward/lease-held") {
				t.Errorf("%s, then %s: %+v", first, second, got)
			}
		}
		if code := r.end(t); code != exitDone {
			t.Errorf("%s: code %d; it said\n%s", first, code, r.said())
		}
	}
}

// A file has one partition, and the same flags.
func TestRelayOnceOnAFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, lines := filepath.Join(folder, "orders.db"), filepath.Join(folder, "orders.jsonl")
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_DATABASE__AUTO_MIGRATE=true",
		"ONWARD_SINKS__0__NAME=lines", "ONWARD_SINKS__0__URL=jsonl:" + lines, "ONWARD_SINKS__1__NAME=nothing", "ONWARD_SINKS__1__URL=discard:",
	}}
	if r := c.run(t, "relay", "--once"); r.code != exitDone {
		t.Fatalf("with nothing to do: %+v", r)
	}
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for i := range 100 {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ('orders', ?, 'T', x'00')`, fmt.Sprint(i%3)); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.run(t, "relay", "--once", "--no-leasing", "--json", "-q"); r.code != exitDone || strings.Count(r.out, `"published":100`) != 2 {
		t.Errorf("with a hundred: %+v", r)
	}
	text, err := os.ReadFile(lines)
	if err != nil || strings.Count(string(text), "\n") != 100 {
		t.Errorf("%d lines, %v", strings.Count(string(text), "\n"), err)
	}
	relay := c.start(t, "relay", "--no-leasing", "--json", "--silent", "--interval-ms", "20", "--set", "relay.name=shop-1")
	eventually(t, "it says a line each tick", func() bool { return strings.Count(relay.out.String(), "\n") >= 6 })
	if r := c.run(t, "relay"); r.code != exitRefused || !strings.Contains(r.err, "is served by relay shop-1") {
		t.Errorf("beside one that does not share: %+v", r)
	}
	if code := relay.end(t); code != exitDone || relay.said() != "" {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	var first, last time.Time
	if err := roundTimes(relay.out.String(), &first, &last); err != nil || last.Sub(first)/time.Duration(strings.Count(relay.out.String(), "\n")) > 500*time.Millisecond {
		t.Errorf("a line every second, although the tick is 20 ms: %v\n%s", err, relay.out.String())
	}
}

// The tick stands for settings.
func TestRelayFlagsStandForSettings(t *testing.T) {
	t.Parallel()
	c := &config.Config{Sinks: []config.Sink{{Name: "a"}, {Name: "b"}}}
	f := relayFlags{interval: 250}
	if err := f.apply(c); err != nil {
		t.Fatal(err)
	}
	if c.Relay.PollMin != 250*time.Millisecond || c.Relay.PollMax != 250*time.Millisecond || f.every() != 250*time.Millisecond {
		t.Errorf("polls from %v to %v, ticks each %v", c.Relay.PollMin, c.Relay.PollMax, f.every())
	}
	for _, text := range []string{"0", "-1", "1.5", "many", "1x", "", "2000000000"} {
		if new(positive).Set(text) == nil {
			t.Errorf("%q is taken for a number", text)
		}
	}
}

// roundTimes reads when the first and the last line of `relay --json` were written.
func roundTimes(out string, first, last *time.Time) error {
	for line := range strings.Lines(out) {
		var v struct{ TS time.Time }
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return err
		}
		if first.IsZero() {
			*first = v.TS
		}
		*last = v.TS
	}
	return nil
}
