package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/cmd/onward/internal/golden"
)

// secondSink adds a sink that two relays serve in different ways, and one that nobody serves.
func (d *database) secondSink(t *testing.T) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_sinks (name, topics, exclude, takes, leaves, created_at, seen_at)
		VALUES ('audit', '{audit.>,orders.*}', '{orders.x}', '^(audit\..+|orders\.[^.]+)$', '^(orders\.x)$', $1, $1), ('old', '{}', '{}', '', '', $1, $1)`, now.Add(-24*time.Hour))
	d.exec(t, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq) SELECT s, p, pg_current_snapshot(), 7 FROM generate_series(0, 3) p, unnest('{audit,old}'::text[]) s`)
	for name, settings := range map[string]string{"audit-1": "topics=audit.>,orders.* window.messages=10", "audit-2": ""} {
		d.exec(t, `INSERT INTO outbox_relays (id, name, sinks, settings, lease, heartbeat_at, leased_until)
			VALUES (gen_random_uuid(), $1, '{audit}', jsonb_build_object('audit', $2::text), '1 hour', clock_timestamp(), clock_timestamp() + interval '1 hour')`, name, settings)
	}
}

func TestSinks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.story(t)
	d.secondSink(t)
	golden.Compare(t, "sinks", alike(d.sessions(t,
		"sinks list", "sinks list -o jsonl -q", "sinks show audit", "sinks show old", "sinks show audit -o json", "sinks show nothing", "status",
		"sinks remove old", "sinks remove nothing --reason x", "sinks remove audit --reason x --yes", "sinks remove old --reason x", "sinks remove old --reason x --dry-run",
		"sinks remove old --reason x --yes", "sinks list")))
	if got := one[string](t, d, `SELECT action || ' ' || sink || ' ' || reason FROM outbox_audit`); got != "remove sink old x" {
		t.Errorf("the audit says %q", got)
	}
	if n := one[int](t, d, `SELECT count(*) FROM outbox_partitions WHERE sink = 'old'`); n != 0 {
		t.Errorf("%d partitions are left", n)
	}
}

// A relay serves several sinks, each with its topics; --sink picks some of them.
func TestARelayServesSeveralSinks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	first, second := newStream(t), newStream(t)
	first.create(t)
	second.create(t)
	c := d.relayTo(first)
	c.environ = append(c.environ, "ONWARD_SINKS__0__TOPICS="+first.name, "ONWARD_SINKS__1__NAME=audit", "ONWARD_SINKS__1__URL="+c.setting(t, "ONWARD_SINKS__0__URL"),
		"ONWARD_SINKS__1__NATS__STREAM="+second.name, "ONWARD_SINKS__1__EXCLUDE="+first.name)
	write := func() {
		d.write(t, first.name)
		d.write(t, second.name)
	}
	write()
	r := c.start(t, "relay", "--json")
	eventually(t, "both arrive", func() bool { return first.count(t) == 1 && second.count(t) == 1 })
	eventually(t, "each sink has its line", func() bool {
		return strings.Contains(r.out.String(), `"sink":"orders"`) && strings.Contains(r.out.String(), `"sink":"audit"`)
	})
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
	write()
	r = c.start(t, "relay", "--sink", "audit")
	eventually(t, "one arrives", func() bool { return second.count(t) == 2 })
	if code := r.end(t); code != exitDone || first.count(t) != 1 {
		t.Errorf("code %d, %d messages of the other sink; it said\n%s", code, first.count(t), r.said())
	}
	if r := c.run(t, "relay", "--sink", "aduit"); r.code != exitUsage || !strings.Contains(r.err, "the sinks are: orders, audit") {
		t.Errorf("a sink that does not exist: %+v", r)
	}
}

// setting is what a variable is set to.
func (c console) setting(t *testing.T, name string) string {
	t.Helper()
	for _, entry := range c.environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	t.Fatalf("%s is not set", name)
	return ""
}
