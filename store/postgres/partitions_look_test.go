package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// People can look at an outbox of very many partitions as soon as it is there: no statement compares each partition with each, also
// where the server has no statistics of them yet (a new outbox, or a restored one). ONWARD_TEST_PARTITIONS=16384 is what an outbox may
// have; the figures are logged.
func TestLookingAtManyPartitionsTakesNoTime(t *testing.T) {
	t.Parallel()
	partitions := sizeOf(t, "ONWARD_TEST_PARTITIONS", 4096)
	server := newServer(t)
	server.start("autovacuum=off")
	g := server.rig(partitions)
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	s := g.join()
	g.renew(s)
	g.write("key-1", "published")
	g.drain(s)
	g.write("key-2", "waits")
	id := pgtest.One[outbox.ID](t, g.Pool, `SELECT id FROM `+g.Table("messages")+` ORDER BY seq DESC LIMIT 1`)
	sql := func(text string, args ...any) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := g.Pool.Exec(ctx, text, args...)
			return err
		}
	}
	looks := []struct {
		what string
		look func(ctx context.Context) error
	}{
		{"retention", func(ctx context.Context) error {
			_, err := g.store.Retain(ctx, store.Retention{Published: time.Hour})
			return err
		}},
		{"status", func(ctx context.Context) error { _, err := admin.Status(ctx); return err }},
		{"partitions", func(ctx context.Context) error { _, err := admin.Partitions(ctx, ""); return err }},
		{"partitions of a sink", func(ctx context.Context) error { _, err := admin.Partitions(ctx, s.sink); return err }},
		{"relays", func(ctx context.Context) error { _, err := admin.Relays(ctx); return err }},
		{"messages", func(ctx context.Context) error { _, err := admin.Messages(ctx, store.Filter{}); return err }},
		{"messages of a sink", func(ctx context.Context) error { _, err := admin.Messages(ctx, store.Filter{Sink: s.sink}); return err }},
		{"messages that wait", func(ctx context.Context) error {
			_, err := admin.Messages(ctx, store.Filter{Sink: s.sink, State: store.StatePending})
			return err
		}},
		{"a message", func(ctx context.Context) error { _, err := admin.Message(ctx, id); return err }},
		{"dead letters", func(ctx context.Context) error { _, err := admin.Dead(ctx, store.Filter{}); return err }},
		{"keys", func(ctx context.Context) error { _, err := admin.Keys(ctx, store.KeyFilter{Blocked: true}); return err }},
		{"a key", func(ctx context.Context) error { _, err := admin.Key(ctx, "", "key-2"); return err }},
		{"minutes", func(ctx context.Context) error { _, err := admin.Minutes(ctx, s.sink, time.Time{}); return err }},
		{"pauses", func(ctx context.Context) error { _, err := admin.Pauses(ctx, ""); return err }},
		{"outbox_status", sql(`SELECT * FROM ` + g.Table("status"))},
		{"outbox_pending", sql(`SELECT * FROM ` + g.Table("pending"))},
		{"outbox_late", sql(`SELECT * FROM ` + g.Table("late") + `()`)},
		{"outbox_published", sql(`SELECT * FROM `+g.Table("published")+`($1)`, id)},
	}
	for _, statistics := range []string{"none", "fresh"} {
		if statistics == "fresh" {
			g.Exec(t, `ANALYZE`)
		}
		for _, l := range looks {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			began := time.Now()
			if err := l.look(ctx); err != nil {
				t.Errorf("%s, statistics %s: %v", l.what, statistics, err)
			}
			cancel()
			t.Logf("%-40s %s", fmt.Sprintf("%s, statistics %s", l.what, statistics), time.Since(began).Round(100*time.Microsecond))
		}
	}
}
