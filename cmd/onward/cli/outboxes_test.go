package cli

import (
	"slices"
	"strings"
	"testing"
)

// Two outboxes lie side by side in one schema, each with a relay of the same name: neither sees the other's messages, leases or
// relays.
func TestRelaysOfTwoOutboxesSideBySide(t *testing.T) {
	t.Parallel()
	first := newDatabase(t)
	second := &database{pool: first.pool, schema: first.schema, prefix: "second_"}
	second.environ = slices.Clone(first.environ)
	second.environ[2] = "ONWARD_DATABASE__TABLE_PREFIX=" + second.prefix
	if r := second.run(t, "migrate", "up", "--partitions", "8"); r.code != exitDone {
		t.Fatalf("migrate: %+v", r)
	}
	var streams []*stream
	var relays []*running
	outboxes := []*database{first, second}
	for _, d := range outboxes {
		s := newStream(t)
		s.create(t)
		streams = append(streams, s)
		relays = append(relays, d.relayTo(s).start(t, "relay", "--set", "relay.name=shop"))
	}
	for i, d := range outboxes {
		for range i + 1 {
			d.write(t, streams[i].name)
		}
	}
	for i, d := range outboxes {
		eventually(t, "the messages arrive", func() bool { return streams[i].count(t) == i+1 })
		list := d.run(t, "relays", "list", "-o", "jsonl", "-q")
		if strings.Count(list.out, "\n") != 1 || !strings.Contains(list.out, `"live":true`) || !strings.Contains(list.out, `"partitions":`+[]string{"4", "8"}[i]) {
			t.Errorf("relays of outbox %d: %+v", i+1, list)
		}
	}
	for i, r := range relays {
		if code := r.end(t); code != exitDone {
			t.Errorf("relay %d ends with %d; it said\n%s", i+1, code, r.said())
		}
		if n := streams[i].count(t); n != i+1 {
			t.Errorf("stream %d has %d messages", i+1, n)
		}
		if got := one[int64](t, outboxes[i], `SELECT published FROM outbox_sinks`); got != int64(i+1) {
			t.Errorf("outbox %d: %d published", i+1, got)
		}
	}
}
