package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// scattered is how many neighbours on the disk are in another order than their numbers.
func (g *rig) scattered() int {
	g.t.Helper()
	return pgtest.One[int](g.t, g.Pool, `SELECT count(*) FILTER (WHERE seq < before) FROM (
		SELECT seq, lag(seq) OVER (ORDER BY ctid) AS before FROM `+g.Table("messages")+`) m`)
}

// wantLines wants texts number/key of these keys, each once, and the numbers of each key in order from first.
func wantLines(t *testing.T, what string, got, keys []string, first, last int) {
	t.Helper()
	of := map[string][]string{}
	for _, text := range got {
		_, key, _ := strings.Cut(text, "/")
		of[key] = append(of[key], text)
	}
	for _, key := range keys {
		var want []string
		for n := first; n <= last; n++ {
			want = append(want, fmt.Sprintf("%d/%s", n, key))
		}
		wantTexts(t, what+", "+key, of[key], want)
	}
	if want := (last - first + 1) * len(keys); len(got) != want {
		t.Errorf("%s: %d messages, want %d", what, len(got), want)
	}
}

// linesOf are messages first to last of eight keys in turn, with ids in no order.
const linesOf = `INSERT INTO %s (id, topic, type, partition_key, payload)
	SELECT gen_random_uuid(), 'orders', 'OrderPaid', 'key-' || k, convert_to(n || '/key-' || k, 'UTF8')
	FROM generate_series(%d, %d) n CROSS JOIN generate_series(1, 8) k ORDER BY n, k`

// Where rows lie says nothing: written into the holes that others left, or laid out anew by another index, also between the
// pages of a late pass, everything comes once and in the order of the numbers. On a server of its own: while transactions
// of others run, deleted rows leave no holes.
func TestRowsComeInOrderWhereverTheyLie(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start("autovacuum=off")
	g := server.rig(4)
	s := g.join(pages(64))
	keys := make([]string, 8)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i+1)
	}
	part := func(first, last int) string { return fmt.Sprintf(linesOf, g.Table("messages"), first, last) }
	cluster := func() {
		t.Helper()
		g.Exec(t, `CLUSTER `+g.Table("messages")+` USING `+g.Prefix+`messages_id`)
		if n := g.scattered(); n < 100 {
			t.Fatalf("%d rows are out of order on the disk, want many", n)
		}
	}
	g.Exec(t, part(1, 200))
	wantLines(t, "before", g.collect(s, held(s)...), keys, 1, 200)

	g.Exec(t, `DELETE FROM `+g.Table("messages")+` WHERE seq % 3 <> 0`)
	g.Exec(t, `VACUUM `+g.Table("messages"))
	late := []*tx{g.open(), g.open()} // into the holes
	for n := 201; n <= 260; n += 10 {
		late[n/10%2].exec(part(n, n+9))
	}
	g.write("another", "early")
	wantTexts(t, "while they are open", g.collect(s, held(s)...), []string{"early"})
	late[0].commit()
	late[1].commit()
	if n := g.scattered(); n < 100 {
		t.Fatalf("%d rows are out of order on the disk, want many", n)
	}
	g.Exec(t, part(261, 300))
	var got []string
	for n := 0; ; n++ {
		p := g.read(s)
		got = append(got, payloads(p)...)
		g.settle(s, done(p))
		if n%3 == 2 && n < 12 {
			cluster()
		}
		if !p.More {
			break
		}
	}
	wantLines(t, "late and fresh ones", got, keys, 201, 300)

	g.Exec(t, part(301, 340))
	cluster()
	wantLines(t, "fresh ones", g.collect(s, held(s)...), keys, 301, 340)
	wantTexts(t, "after a restart", g.collect(g.crash(s), 0, 1, 2, 3), nil)
}

// Lists of messages go by their numbers, whatever lies where.
func TestListsAreInOrderWhereverRowsLie(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	g.Exec(t, fmt.Sprintf(linesOf, g.Table("messages"), 1, 100))
	g.join()
	g.Exec(t, `CLUSTER `+g.Table("messages")+` USING `+g.Prefix+`messages_id`)
	if n := g.scattered(); n < 100 {
		t.Fatalf("%d rows are out of order on the disk, want many", n)
	}
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]store.Filter{"all": {}, "pending": {Sink: "orders", State: store.StatePending}, "a key": {Key: "key-3"}} {
		f.Limit = 37
		var got []int64
		for {
			list, err := admin.Messages(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range list.Messages {
				got = append(got, m.Seq)
			}
			if f.After = list.Next; f.After == "" {
				break
			}
		}
		want := pgtest.All[int64](t, g.Pool, `SELECT seq FROM `+g.Table("messages")+` WHERE $1 IN ('', partition_key) ORDER BY seq DESC`, f.Key)
		if !slices.Equal(got, want) || len(want) < 100 {
			t.Errorf("%s: %d messages %v, want %d %v", name, len(got), got, len(want), want)
		}
	}
	dead := pgtest.All[[16]byte](t, g.Pool, `SELECT id FROM `+g.Table("messages")+` WHERE seq % 5 = 0 ORDER BY seq`)
	g.Exec(t, sqlOf(g.DB, `INSERT INTO outbox_dead (sink, place, `+copiedColumns+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT 'orders', seq, `+copiedColumns+`, false, 'test/code', 'no', 1, now(), now(), 'r' FROM outbox_messages WHERE seq % 5 = 0 ORDER BY id`))
	var got []outbox.ID
	for f := (store.Filter{Limit: 37}); ; {
		list, err := admin.Dead(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list.Dead {
			got = append(got, d.ID)
		}
		if f.After = list.Next; f.After == "" {
			break
		}
	}
	slices.Reverse(got)
	for i, id := range dead {
		if len(got) != len(dead) || got[i] != outbox.ID(id) {
			t.Fatalf("%d dead letters, want %d by their numbers", len(got), len(dead))
		}
	}
}
