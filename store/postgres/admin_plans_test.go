package postgres

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// listed adds two sinks, whose cursors, parked and dead messages the test sets by hand: the cursors of orders pass all but
// the last 100,000, nothing has read for audit.
func (m *million) listed(t *testing.T) *adminOutbox {
	t.Helper()
	n, err := newNames(m.Schema, m.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	o := &adminOutbox{DB: m.DB, names: n}
	if o.admin, err = NewAdmin(m.Pool, Config{Schema: m.Schema, TablePrefix: m.Prefix}); err != nil {
		t.Fatal(err)
	}
	for _, sink := range []string{"orders", "audit"} {
		o.run(t, `INSERT INTO outbox_sinks (name) VALUES ($1)`, sink)
		o.run(t, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq) SELECT $1, p, pg_current_snapshot(), 0 FROM generate_series(0, $2::int - 1) p`,
			sink, m.partitions)
	}
	return o
}

// except parks the first n messages behind one key, and lets 20,000 be dead.
func (o *adminOutbox) except(t *testing.T, n int) {
	t.Helper()
	o.run(t, `INSERT INTO outbox_parked (sink, place, `+copiedColumns+`, reason, due_at)
		SELECT 'orders', seq, `+strings.Replace(copiedColumns, "partition_key", "'hot'", 1)+`, CASE WHEN seq = 1 THEN 'retry' ELSE 'behind' END, CASE WHEN seq = 1 THEN now() END
		FROM outbox_messages WHERE seq <= $1`, n)
	o.run(t, `INSERT INTO outbox_dead (sink, place, `+copiedColumns+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT 'orders', seq, `+copiedColumns+`, false, 'onward/rejected', 'no', 10, now(), now(), 'r' FROM outbox_messages WHERE seq BETWEEN 200000 AND 219999`)
	o.run(t, `INSERT INTO outbox_audit (actor, action, sink, message_id) SELECT 'a', 'requeue', sink, id FROM outbox_dead`)
}

// node is a node of a plan as EXPLAIN (FORMAT JSON) writes it.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []node  `json:"Plans"`
}

func (n node) walk(f func(n node)) {
	f(n)
	for _, below := range n.Plans {
		below.walk(f)
	}
}

// checkLists: every list goes along an index: no table is read from its beginning to its end, or sorted, at a million rows.
func (o *adminOutbox) checkLists(t *testing.T, m *million, statistics string) {
	t.Helper()
	start, end := fmt.Sprint(uint64(math.MaxUint64)), int64(math.MaxInt64)
	id := pgtest.One[string](t, o.Pool, o.names.sql(`SELECT id::text FROM outbox_messages WHERE seq = 500000`))
	dead := pgtest.One[string](t, o.Pool, o.names.sql(`SELECT id::text FROM outbox_dead WHERE seq = 210000`))
	log := func(sink, typ, state string, scan int) []any {
		return []any{sink, start, end, scan, 101, "", typ, "", "", "", nil, nil, state, "0"}
	}
	const sorted = 101_000       // rows that status has cut off before, for a sink; a table has more
	const few, scan = 10_000, 20 // rows read that no filter takes, and the buffers for each when its state is asked for
	const page = 8_000           // buffers of what stops at a page, past the messages of an open transaction
	for name, c := range map[string]struct {
		statement string
		args      []any
		buffers   int
	}{
		"newest":               {"list_log", log("", "", "", maxScan), page},
		"a type":               {"list_log", log("", "T3", "", maxScan), page},
		"no such type":         {"list_log", log("", "none", "", maxScan), 110_000},
		"pending":              {"list_log", log("orders", "", "pending", maxScan), page},
		"published":            {"list_log", log("orders", "", "published", few), 8_000 + scan*few},
		"discarded":            {"list_log", log("orders", "", "discarded", few), 8_000 + scan*few},
		"of a key":             {"list_key", []any{"", "k7", end, maxScan, 101, "", "", "", "", "", nil, nil, "", "", "", 0, false}, 20_000},
		"parked":               {"list_exceptions", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "parked", "", "", 0}, page},
		"dead and parked":      {"list_exceptions", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "", "", "", 1}, 110_000},
		"dead letters":         {"dead", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "", 0, "", ""}, page},
		"dead by another code": {"dead", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "onward/x", 0, "", ""}, 22_000},
		"a dead letter":        {"dead_one", []any{"", dead}, 100},
		"a message":            {"message", []any{id}, 100},
		"its states":           {"states", []any{"", "{" + id + "}", "{1}", "{500000}", "{800}", "{orders}"}, 300},
		"a receipt":            {"receipt", []any{"orders", id, 1, 500000, "800"}, 100},
		"pending floor":        {"pending_floor", []any{"orders"}, 300_000},
		"partitions":           {"partitions", []any{"orders"}, 200_000},
		"status":               {"status", []any{"orders"}, 300_000},
	} {
		m.check(t, statistics, readSettings, question{name: "list " + name, sql: o.admin.sql[c.statement], args: c.args}, sorted, c.buffers)
	}
	// The views, as psql asks: nothing is set. A partition that is behind is read whole at most.
	views := func(name, sql string, buffers int) {
		m.check(t, statistics, "SET LOCAL jit = off", question{name: "view " + name, sql: o.names.sql(sql)}, sorted, buffers)
	}
	partition := 1_000_000/m.partitions + page
	views("status", `SELECT * FROM outbox_status`, 2*300_000)
	views("pending", `SELECT * FROM outbox_pending LIMIT 20`, partition)
	views("pending of a sink", `SELECT * FROM outbox_pending WHERE sink = 'orders' LIMIT 20`, partition)
	views("pending of a key", `SELECT * FROM outbox_pending WHERE sink = 'orders' AND partition_id = outbox_partition('k7') AND partition_key = 'k7'`, 4*partition)
	views("a message", `SELECT * FROM outbox_published('`+id+`')`, 300)
}
