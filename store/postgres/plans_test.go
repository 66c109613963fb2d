package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// million is an outbox that grows from a thousand messages to a million, half of them of eight hot keys, and whose
// statistics are what the test says.
type million struct {
	*rig
	tr         *trace
	conn       *pgx.Conn // that explains
	partitions int
	hot        []int // the partitions of the hot keys
}

// growing are the tables that grow without end.
var growing = []string{"messages", "parked", "dead", "attempts", "positions", "audit"}

func newMillion(t *testing.T, partitions int) *million {
	t.Helper()
	g, tr := newRig(t, partitions).traced()
	m := &million{rig: g, tr: tr, partitions: partitions}
	for i := range 8 {
		m.hot = append(m.hot, outbox.PartitionOf(fmt.Sprint("hot", i), outbox.ID{}, partitions))
	}
	for _, table := range growing {
		g.Exec(t, `ALTER TABLE `+g.Table(table)+` SET (autovacuum_enabled = off)`)
	}
	var err error
	if m.conn, err = pgx.Connect(t.Context(), g.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close(context.Background()) })
	return m
}

// millionRows are messages as the trigger would leave them, without it: it is a third of the time that a million takes.
const millionRows = `INSERT INTO outbox_messages (txid, seq, id, topic, partition_key, type, payload)
	SELECT pg_current_xact_id(), nextval('outbox_messages_seq_seq'), gen_random_uuid(), 'orders',
	       CASE WHEN g %% 2 = 0 THEN 'hot' || g / 2 %% 8 ELSE 'k' || g %% 1000 END, 'T' || g %% 7, 'x'
	FROM generate_series(%d, %d) g`

// insert writes messages in a transaction of their own.
func (m *million) insert(from, to int) {
	m.t.Helper()
	m.Exec(m.t, `BEGIN; SET LOCAL session_replication_role = replica;`+sqlOf(m.DB, fmt.Sprintf(millionRows, from, to))+`; COMMIT`)
}

// grow writes the rest of the million, each 100,000 in a transaction, and calls after each. The indexes are built at the end.
func (m *million) grow(after func(messages int)) {
	m.t.Helper()
	table := m.Table("messages")
	build := pgtest.All[string](m.t, m.Pool, `
		SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
		FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'p'
		UNION ALL
		SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = $1::regclass AND NOT indisprimary`, table)
	drop := pgtest.All[string](m.t, m.Pool, `
		SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)
		FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'p'
		UNION ALL
		SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index WHERE indrelid = $1::regclass AND NOT indisprimary`, table)
	m.Exec(m.t, strings.Join(drop, ";"))
	for from := 1001; from < 1_000_000; from = from/100_000*100_000 + 100_001 {
		m.insert(from, from/100_000*100_000+100_000)
		after(from/100_000*100_000 + 100_000)
	}
	m.Exec(m.t, strings.Join(build, ";"))
}

// What the planner knows of the tables that grow.
const (
	staleStatistics = "stale"  // of a thousand messages
	noStatistics    = "absent" // as before the first ANALYZE
	freshStatistics = "fresh"
)

// statistics sets what the planner knows: stale only before anything else.
func (m *million) statistics(kind string) {
	m.t.Helper()
	const of = ` WHERE oid = ANY ($1::oid[]) OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY ($1::oid[]))`
	tables := make([]string, len(growing))
	for i, table := range growing {
		tables[i] = m.Table(table)
	}
	oids := pgtest.All[uint32](m.t, m.Pool, `SELECT x::regclass::oid FROM unnest($1::text[]) x`, tables)
	// What the explained statements left behind and autovacuum would take.
	m.Exec(m.t, `VACUUM `+strings.Join([]string{m.Table("partitions"), m.Table("cursors"), m.Table("relays"), m.Table("sinks")}, ", "))
	switch kind {
	case staleStatistics:
		m.Exec(m.t, `UPDATE pg_class SET relpages = 20, reltuples = 1000, relallvisible = 0`+of, oids)
	case noStatistics:
		m.Exec(m.t, `DELETE FROM pg_statistic WHERE starelid = ANY ($1::oid[])`, oids)
		m.Exec(m.t, `UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0`+of, oids)
	case freshStatistics:
		m.Exec(m.t, `ANALYZE `+strings.Join(tables, ", "))
	}
}

// explain runs a statement as the product does, in each plan mode, and undoes what it did. scanned are the tables of which
// something was read from the beginning, also within functions.
func (m *million) explain(begin string, q question, each func(mode string, plan node, scanned []string)) {
	m.t.Helper()
	ctx := m.t.Context()
	prepared, err := m.conn.Prepare(ctx, "asked", q.sql)
	if err != nil {
		m.t.Fatalf("%s: %v", q.name, err)
	}
	defer func() { _ = m.conn.Deallocate(context.WithoutCancel(ctx), "asked") }()
	call := "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE asked"
	for i, arg := range q.args {
		text, err := m.conn.TypeMap().Encode(prepared.ParamOIDs[i], pgx.TextFormatCode, arg, []byte{})
		if err != nil {
			m.t.Fatalf("%s: $%d: %v", q.name, i+1, err)
		}
		literal := "NULL"
		if text != nil {
			literal = "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
		}
		call += map[bool]string{true: "(", false: ", "}[i == 0] + literal
	}
	if len(q.args) > 0 {
		call += ")"
	}
	undone := errors.New("done, and undone")
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		var text []byte
		var scanned []string
		err := pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, begin+"; SET LOCAL plan_cache_mode = "+mode); err != nil {
				return err
			}
			before, err := m.scans(tx)
			if err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, call, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
				return err
			}
			after, err := m.scans(tx)
			for table, n := range after {
				if n > before[table] {
					scanned = append(scanned, table)
				}
			}
			return errors.Join(err, undone)
		})
		if err = unless(err, undone); err != nil {
			m.t.Fatalf("%s: %v", q.name, err)
		}
		var explained []struct{ Plan node }
		if err := json.Unmarshal(text, &explained); err != nil {
			m.t.Fatal(err)
		}
		each(mode, explained[0].Plan, scanned)
	}
}

// scans counts how often each table was read from its beginning by this connection, since some time ago.
func (m *million) scans(tx pgx.Tx) (map[string]int64, error) {
	counts := map[string]int64{}
	rows, err := tx.Query(m.t.Context(), `SELECT relname::text, seq_scan FROM pg_stat_xact_user_tables WHERE schemaname = $1`, m.Schema)
	if err != nil {
		return nil, err
	}
	var table string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&table, &n}, func() error {
		counts[table] = n
		return nil
	})
	return counts, err
}

// unless leaves out the error of a transaction that only was to be undone.
func unless(err, undone error) error {
	if errors.Is(err, undone) && err.Error() == undone.Error() {
		return nil
	}
	return err
}

// check explains a statement: it reads no table that grows from its beginning, sorts no more than sorted rows, and touches
// as many buffers as most.
func (m *million) check(t *testing.T, statistics, begin string, q question, sorted float64, most int) (touched int) {
	t.Helper()
	m.explain(begin, q, func(mode string, plan node, scanned []string) {
		of := fmt.Sprintf("%s, statistics %s, %s", q.name, statistics, mode)
		touched = max(touched, plan.Hit+plan.Read)
		if got := plan.Hit + plan.Read; got > most {
			t.Errorf("%s: touches %d buffers, want at most %d", of, got, most)
		}
		for _, table := range growing {
			if slices.Contains(scanned, m.Prefix+table) {
				t.Errorf("%s: reads %s from its beginning", of, table)
			}
		}
		plan.walk(func(n node) {
			if n.Type == "Sort" && n.Rows*n.Loops > sorted {
				t.Errorf("%s: sorts %.0f rows", of, n.Rows*n.Loops)
			}
		})
	})
	return touched
}

// sessionOf is the session of a new relay on a sink that begins at the first message, or, where it has nothing to read yet,
// with the next one.
func (m *million) sessionOf(sink string, page int, begins bool) *Session {
	m.t.Helper()
	m.Exec(m.t, `INSERT INTO `+m.Table("sinks")+` (name) VALUES ($1)`, sink)
	from := `0`
	if !begins {
		from = `(SELECT last_value FROM ` + m.Table("messages_seq_seq") + `)`
	}
	m.Exec(m.t, `INSERT INTO `+m.Table("partitions")+` (sink, partition_id, snapshot, seq)
		SELECT $1, p, pg_current_snapshot(), `+from+` FROM generate_series(0, $2::int - 1) p`, sink, m.partitions)
	id := outbox.NewID()
	joined, err := m.store.Join(m.t.Context(), store.Relay{
		ID: id, Name: "relay-" + id.String(), Host: "here", PID: 1, Lease: long, Heartbeat: long, Page: page,
	}, store.Sink{Name: sink})
	if err != nil {
		m.t.Fatal(err)
	}
	s := joined.(*Session)
	m.tr.know(s)
	m.renew(s)
	return s
}

// asks reads once and returns the statements that it took.
func (m *million) asks(s *Session, r store.Room) (store.Page, []question) {
	m.t.Helper()
	m.tr.take()
	p, err := s.Read(m.t.Context(), r)
	if err != nil {
		m.t.Fatal(err)
	}
	asked, _ := m.tr.take()
	return p, asked
}
