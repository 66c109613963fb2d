package postgres

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// Each block of docs/sql.md runs against an outbox with content, in the page's order and with no more rights than it says, and
// answers what the text claims.
func TestEachQueryOfTheSQLPageAnswers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, b[1])
	}
	g := newRig(t, 4)
	o := shop(t, g)
	viewer, admin := g.As(t, "onward_viewer"), g.As(t, "onward_admin")
	// What a row of each answer says, in any order of columns; "" where the answer may be empty. All of it has to be there.
	for i, want := range [][]string{
		{"orders 5 false", "2 2 2"},                       // status: backlog, parked 2, blocked 2, dead 2
		{"orders parked", "order-7", "event-", "no room"}, // oldest: attempts and error of what failed
		{"orders pending"},
		{"orders parked retry", "orders parked behind"},
		{"orders behind 1", "orders retry 1"},
		{"onward/unroutable no subject", "onward/rejected too large"},
		{"onward/rejected too large 1"},
		{"0"},
		{"dead"},
		{"discard orders", "requeue orders", "INC-42: the customer is gone"},
		{"orders"},
		{"orders", " 3"},
		{"relay-", "true"},
		{""},
	} {
		if i >= len(blocks) {
			t.Fatalf("%d blocks", len(blocks))
		}
		pool := viewer
		if strings.Contains(blocks[i], "outbox_requeue(") || strings.Contains(blocks[i], "outbox_discard(") {
			if _, err := viewer.Exec(t.Context(), o.names.sql(blocks[i])); err == nil {
				t.Errorf("block %d: who may only look may repair", i+1)
			}
			pool = admin
		}
		rows, err := pool.Query(t.Context(), o.names.sql(blocks[i]))
		if err != nil {
			t.Fatalf("block %d: %v\n%s", i+1, err, blocks[i])
		}
		answer, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			return strings.TrimSuffix(fmt.Sprintln(values...), "\n"), err
		})
		if err != nil {
			t.Fatalf("block %d: %v\n%s", i+1, err, blocks[i])
		}
		all := strings.Join(answer, "\n")
		for _, w := range want {
			if !strings.Contains(all, w) {
				t.Errorf("block %d answers\n%s\nwithout %q:\n%s", i+1, all, w, blocks[i])
			}
		}
		if i == len(blocks)-1 || want[0] == "" {
			continue
		}
		if len(answer) == 0 {
			t.Errorf("block %d answers nothing:\n%s", i+1, blocks[i])
		}
	}
	if len(blocks) != 14 {
		t.Errorf("the page has %d blocks, this test 14", len(blocks))
	}
}

// shop fills an outbox: three messages published some minutes ago, two that died, one that failed and one behind it, five that wait.
func shop(t *testing.T, g *rig) *adminOutbox {
	t.Helper()
	n, err := newNames(g.Schema, g.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	o := &adminOutbox{DB: g.DB, names: n}
	s := g.join()
	write := func(key string, events ...int) {
		for _, e := range events {
			o.run(t, `INSERT INTO outbox_messages (topic, type, partition_key, payload, event_id) VALUES ('orders', 'T', $1, convert_to($2, 'UTF8'), $2)`,
				key, fmt.Sprint("event-", e))
		}
	}
	write("order-1", 1, 2)
	write("order-2", 3)
	g.drain(s)
	g.age(5 * time.Minute)
	write("order-7", 4, 5)
	write("order-8", 6)
	write("order-9", 7)
	var m store.Settlement
	p := g.read(s)
	m = done(p)
	m.Published = 0
	for _, part := range p.Parts {
		for i := range part.Records {
			r := &part.Records[i]
			v := store.Verdict{Partition: r.Partition, Seq: r.Seq, ID: r.ID, Key: r.Key, To: store.Dead, Blocks: r.Key == "order-8", Attempts: 1, Code: "onward/rejected", Error: "too large"}
			switch r.EventID {
			case "event-4":
				v.To, v.Reason, v.Due, v.Code, v.Error, v.Attempts, v.Blocks = store.Park, store.ReasonRetry, time.Hour, "onward/throttled", "no room", 2, false
			case "event-5":
				v.To, v.Reason, v.Code, v.Error, v.Attempts, v.Blocks = store.Park, store.ReasonBehind, "", "", 0, false
			case "event-7":
				v.Code, v.Error = "onward/unroutable", "no subject"
			}
			m.Verdicts = append(m.Verdicts, v)
		}
	}
	g.settle(s, m)
	write("order-3", 8, 9, 10, 11, 12)
	if n := pgtest.One[int](t, o.Pool, n.sql(`SELECT count(*) FROM outbox_dead`)); n != 2 {
		t.Fatalf("%d dead letters", n)
	}
	return o
}
