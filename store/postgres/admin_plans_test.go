package postgres

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// A million messages of a thousand keys; of the older ones 100,000 are parked behind one key, 20,000 are dead, and the
// cursor has passed all but the last 50,000. A relay of another sink has read nothing.
func millionMessages(t *testing.T) *adminOutbox {
	t.Helper()
	db := newOutbox(t, 64)
	n, err := newNames(db.Schema, db.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	o := &adminOutbox{DB: db, names: n}
	if o.admin, err = NewAdmin(db.Pool, Config{Schema: db.Schema, TablePrefix: db.Prefix}); err != nil {
		t.Fatal(err)
	}
	for _, sink := range []string{"orders", "audit"} {
		o.run(t, `INSERT INTO outbox_sinks (name) VALUES ($1)`, sink)
		o.run(t, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq) SELECT $1, p, pg_current_snapshot(), 0 FROM generate_series(0, 63) p`, sink)
	}
	fill := func(from, to int) {
		o.run(t, `INSERT INTO outbox_messages (id, topic, partition_key, type, payload)
			SELECT gen_random_uuid(), 'orders', 'k' || g % 1000, 'T' || g % 7, 'x' FROM generate_series($1::int, $2::int) g`, from, to)
	}
	for i := range 10 {
		fill(i*100_000+1, i*100_000+100_000)
		if i == 8 {
			o.run(t, `UPDATE outbox_partitions SET snapshot = pg_current_snapshot(), seq = 900000 WHERE sink = 'orders'`)
		}
	}
	o.run(t, `INSERT INTO outbox_parked (sink, place, `+copiedColumns+`, reason, due_at)
		SELECT 'orders', seq, `+strings.Replace(copiedColumns, "partition_key", "'hot'", 1)+`, CASE WHEN seq = 1 THEN 'retry' ELSE 'behind' END, CASE WHEN seq = 1 THEN now() END
		FROM outbox_messages WHERE seq <= 100000`)
	o.run(t, `INSERT INTO outbox_dead (sink, place, `+copiedColumns+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT 'orders', seq, `+copiedColumns+`, false, 'onward/rejected', 'no', 10, now(), now(), 'r' FROM outbox_messages WHERE seq BETWEEN 200000 AND 219999`)
	o.run(t, `ANALYZE outbox_messages, outbox_parked, outbox_dead, outbox_partitions`)
	return o
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

// explain runs a statement under a plan mode and returns its plan.
func (o *adminOutbox) explain(t *testing.T, mode, sql string, args []any) node {
	t.Helper()
	conn := o.acquire(t)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), readSettings+`; SET LOCAL plan_cache_mode = `+mode); err != nil {
		t.Fatal(err)
	}
	name := "plan_" + mode
	if _, err := tx.Prepare(t.Context(), name, sql); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Conn().Deallocate(t.Context(), name) }()
	literals := make([]string, len(args))
	for i, a := range args {
		literals[i] = "NULL"
		if a != nil {
			literals[i] = "'" + strings.ReplaceAll(fmt.Sprint(a), "'", "''") + "'"
		}
	}
	call := "EXECUTE " + name
	if len(args) > 0 {
		call += "(" + strings.Join(literals, ", ") + ")"
	}
	var text []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+call, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		t.Fatalf("%s: %v", call, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

func (o *adminOutbox) acquire(t *testing.T) *pgxpool.Conn {
	t.Helper()
	conn, err := o.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Every list goes along an index: no table is read from its beginning to its end, or sorted, at a million rows.
func TestPlansOfListsAtAMillionMessages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes a million rows")
	}
	o := millionMessages(t)
	start, end := fmt.Sprint(uint64(math.MaxUint64)), int64(math.MaxInt64)
	id := pgtest.One[string](t, o.Pool, o.names.sql(`SELECT id::text FROM outbox_messages WHERE seq = 500000`))
	dead := pgtest.One[string](t, o.Pool, o.names.sql(`SELECT id::text FROM outbox_dead WHERE seq = 210000`))
	log := func(typ, state string) []any {
		return []any{"", start, end, maxScan, 101, "", typ, "", "", "", nil, nil, state, "0"}
	}
	const sorted = 200_000              // rows that status has cut off before, for two sinks; a table has more
	const page, scan = 3_000, 1_400_000 // buffers: of what stops at a page, and of what reads 100,000 rows and looks each one up
	for name, c := range map[string]struct {
		statement string
		args      []any
		buffers   int
	}{
		"newest":               {"list_log", log("", ""), page},
		"a type":               {"list_log", log("T3", ""), page},
		"no such type":         {"list_log", log("none", ""), 110_000},
		"pending":              {"list_log", log("", "pending"), page},
		"published":            {"list_log", log("", "published"), scan},
		"discarded":            {"list_log", log("", "discarded"), scan},
		"of a key":             {"list_key", []any{"", "k7", end, maxScan, 101, "", "", "", "", "", nil, nil, "", "", "", 0, false}, 20_000},
		"parked":               {"list_exceptions", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "parked", "", "", 0}, page},
		"dead and parked":      {"list_exceptions", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "", "", "", 1}, 110_000},
		"dead letters":         {"dead", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "", 0, "", ""}, page},
		"dead by another code": {"dead", []any{"", start, end, maxScan, 101, "", "", "", "", "", nil, nil, "onward/x", 0, "", ""}, 22_000},
		"a dead letter":        {"dead_one", []any{"", dead}, 100},
		"a message":            {"message", []any{id}, 100},
		"its states":           {"states", []any{"", "{" + id + "}", "{1}", "{500000}", "{800}"}, 100},
		"a receipt":            {"receipt", []any{"orders", id, 1, 500000, "800"}, 100},
		"pending floor":        {"pending_floor", []any{"orders"}, 100_000},
		"partitions":           {"partitions", []any{""}, 200_000},
		"status":               {"status", []any{""}, 800_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
				plan := o.explain(t, mode, o.admin.sql[c.statement], c.args)
				if got := plan.Hit + plan.Read; got > c.buffers {
					t.Errorf("%s: touches %d buffers, want at most %d", mode, got, c.buffers)
				}
				plan.walk(func(n node) {
					big := strings.HasSuffix(n.Relation, "messages") || strings.HasSuffix(n.Relation, "parked") || strings.HasSuffix(n.Relation, "dead")
					if n.Type == "Seq Scan" && big && n.Loops > 0 {
						t.Errorf("%s: reads %s from its beginning", mode, n.Relation)
					}
					if n.Type == "Sort" && n.Rows*n.Loops > sorted {
						t.Errorf("%s: sorts %.0f rows", mode, n.Rows*n.Loops)
					}
				})
			}
		})
	}
}
