package cli

import (
	"os"
	"strings"
	"testing"
)

// hears is a way to the database whose connections bear the outbox's name.
func (d *database) hears() string {
	url, mark := os.Getenv("ONWARD_TEST_POSTGRES_URL"), "?"
	if strings.Contains(url, mark) {
		mark = "&"
	}
	return "database.listen_url=" + url + mark + "application_name=" + d.schema
}

func (d *database) listeners(t *testing.T) (n int) {
	t.Helper()
	err := d.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, d.schema).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRelayHearsByTheListenURL(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	r := d.relayTo(s).start(t, "relay", "--set", d.hears())
	eventually(t, "the relay listens", func() bool { return d.listeners(t) == 1 })
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
	eventually(t, "nobody listens any more", func() bool { return d.listeners(t) == 0 })
}

// With relay.wakeup off nobody listens, and the sink's line says so: relays of one outbox that differ in it are shown.
func TestRelayListensToNobodyWithWakeupOff(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	off := d.relayTo(s).start(t, "relay", "--set", d.hears(), "--set", "relay.wakeup=off", "--set", "relay.name=a")
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	if n := d.listeners(t); n != 0 {
		t.Errorf("%d connections listen", n)
	}
	auto := d.relayTo(s).start(t, "relay", "--set", d.hears(), "--set", "relay.name=b")
	eventually(t, "the other relay listens", func() bool { return d.listeners(t) == 1 })
	eventually(t, "that they differ is shown", func() bool {
		return strings.Count(d.run(t, "sinks", "show", "orders").out, "wakeup=off") == 1
	})
	for _, r := range []*running{off, auto} {
		if code := r.end(t); code != exitDone {
			t.Errorf("code %d; it said\n%s", code, r.said())
		}
	}
}
