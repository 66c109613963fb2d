package postgres

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// Two hours at a steady rate, a minute in some milliseconds: messages come, are published, and are removed ten minutes later; vacuum
// comes by. After the first forty minutes nothing grows any more: neither the log nor its indexes, nor what keeps the cursors.
func TestNothingGrowsAtASteadyRate(t *testing.T) {
	t.Parallel()
	const minutes, warm, kept = 120, 40, 10
	each := sizeOf(t, "ONWARD_TEST_STEADY_ROWS", 200) // in a minute
	server := newServer(t)                            // where nobody else's transactions keep rows on the disk
	server.start("autovacuum=off")
	g := server.rig(16)
	s := g.join(func(r *store.Relay) { r.Page = 4096 })
	tables := []string{"messages", "cursors", "partitions", "relays", "marks", "attempts"}
	sizes := func() map[string]int {
		all := map[string]int{}
		for _, table := range tables {
			all[table] = pgtest.One[int](t, g.Pool, `SELECT pg_table_size($1)::int`, g.Table(table))
			all[table+"'s indexes"] = pgtest.One[int](t, g.Pool, `SELECT pg_indexes_size($1)::int`, g.Table(table))
		}
		return all
	}
	var first map[string]int
	for minute := range minutes {
		g.insertMany(each)
		g.drain(s)
		g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '1 minute'`)
		g.store.sweep.marked = time.Time{}
		if minute%7 == 0 {
			g.store.sweep.front = time.Time{}
		}
		g.retainOn(store.Retention{Published: kept * time.Minute})
		if minute%4 == 0 {
			for _, table := range tables[:5] {
				g.Exec(t, `VACUUM `+g.Table(table))
			}
		}
		if minute == warm {
			first = sizes()
		}
	}
	last := sizes()
	t.Logf("%d messages; after %d minutes %v; after %d %v", minutes*each, warm, first, minutes, last)
	for what, before := range first {
		if now := last[what]; now > before+before/8+4*8192 {
			t.Errorf("%s: %d bytes after %d minutes, %d after %d", what, before, warm, now, minutes)
		}
	}
	if n := g.logged(); n > (kept+2)*each || n < kept*each {
		t.Errorf("the log has %d messages, want those of %d minutes at %d a minute", n, kept, each)
	}
	pgtest.Eventually(t, "vacuum leaves no dead rows", func() bool { // the statistics of other sessions come later
		g.Exec(t, `VACUUM `+g.Table("messages"))
		return pgtest.One[int](t, g.Pool, `SELECT n_dead_tup::int FROM pg_stat_user_tables WHERE relid = $1::regclass`, g.Table("messages")) <= each
	})
}
