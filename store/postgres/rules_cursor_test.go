package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of the cursor row: what is in it, and how it is written.

// touches counts the pages of the database that a statement touches, and undoes it.
func (g *rig) touches(q question) int {
	g.t.Helper()
	ctx := g.t.Context()
	tx, err := g.Pool.Begin(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, settings); err != nil {
		g.t.Fatal(err)
	}
	var text []byte
	if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+q.sql, q.args...).Scan(&text); err != nil {
		g.t.Fatal(err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		g.t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// Cursor rows are inserted, never updated: settles, reads and reloads stay as cheap as the first one while somebody holds
// a snapshot, and no version of the row can be removed.
func TestCursorRowsAreInsertedAndNeverUpdated(t *testing.T) {
	t.Parallel()
	settles := sizeOf(t, "ONWARD_TEST_SETTLES", 4000)
	g, tr := newRig(t, 4).traced()
	g.Exec(t, `CREATE FUNCTION `+g.Table("no_update")+`() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a cursor row is updated'; END $$`)
	g.Exec(t, `CREATE TRIGGER no_update BEFORE UPDATE ON `+g.Table("cursors")+` FOR EACH ROW EXECUTE FUNCTION `+g.Table("no_update")+`()`)
	s := g.join()
	tr.know(s)
	g.drain(s)
	g.drain(s)
	x := g.open()
	x.exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
	x.exec(`SELECT FROM ` + g.Table("cursors"))

	cost := func() map[string]int {
		t.Helper()
		least := map[string]int{}
		for range 3 { // other tests' transactions that end meanwhile cost a read something
			g.drain(s)
			g.write("a", "x")
			tr.take()
			p := g.read(s)
			g.settle(s, done(p))
			asked, _ := tr.take()
			read, settle := asked[0], asked[1]
			settle.args = slices.Clone(settle.args)
			settle.args[2] = s.no // of the row that is there now
			reload := question{name: "reload", sql: s.sql["reload"], args: []any{s.sink, s.member.ID.String()}}
			for _, q := range []question{read, settle, reload} {
				if n := g.touches(q); least[q.name] == 0 || n < least[q.name] {
					least[q.name] = n
				}
			}
		}
		return least
	}
	first := cost()
	tenth := settles / 10
	took := func(settles int) time.Duration {
		start := time.Now()
		for range settles {
			g.settle(s, store.Settlement{})
		}
		return time.Since(start) / time.Duration(settles)
	}
	early := took(tenth)
	took(settles - 2*tenth)
	t.Logf("a settle takes %s of the first tenth, %s of the last", early, took(tenth)) // other tests run meanwhile
	for name, after := range cost() {
		before := first[name]
		t.Logf("%s touches %d buffers after %d settles, %d at first", name, after, settles, before)
		if before == 0 || 2*after >= 3*before {
			t.Errorf("%s touches %d buffers after %d settles, %d at first", name, after, settles, before)
		}
	}
	x.commit()

	next := g.crash(s) // neither does whatever else replaces the row
	if err := next.GiveBack(t.Context(), held(next)[:2]); err != nil {
		t.Fatal(err)
	}
	g.renew(next)
	g.settle(next, store.Settlement{})
	if err := next.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// heldUp has four partitions in one row, and a read that gave late1 and late2 of partition 1, which nobody has settled,
// and other of partition 2, which is settled. tx is the transaction that was late.
func heldUp(t *testing.T) (g *rig, s *Session, p store.Page, tx string) {
	g = newRig(t, 4)
	s = g.join()
	g.drain(s)
	g.drain(s)
	late := g.open()
	late.write(keyIn(1, 4), "late1", "late2")
	tx = pgtest.One[string](t, g.Pool, `SELECT backend_xid::text FROM pg_stat_activity WHERE pid = $1`, late.conn.Conn().PgConn().PID())
	g.write(keyIn(2, 4), "first")
	wantTexts(t, "at first", g.drain(s), []string{"first"})
	late.commit()
	g.write(keyIn(2, 4), "other")
	p = g.read(s)
	wantTexts(t, "when it is there", payloads(p), []string{"late1", "late2", "other"})
	m := done(p)
	m.Done = slices.DeleteFunc(m.Done, func(d store.Done) bool { return d.Partition == 1 })
	g.settle(s, m)
	return g, s, p, tx
}

// sees asks the relay's row.
func (g *rig) sees(tx string) bool {
	g.t.Helper()
	return pgtest.One[bool](g.t, g.Pool, `SELECT pg_visible_in_snapshot($1::xid8, snapshot) FROM `+g.Table("cursors"), tx)
}

func (g *rig) members() []int32 {
	g.t.Helper()
	return pgtest.All[int32](g.t, g.Pool, `SELECT unnest(partitions) FROM `+g.Table("cursors")+` ORDER BY 1`)
}

// The snapshot of the row is that of the newest read of which every partition's late rows are settled: one that is not
// settled for all would lose them.
func TestTheSnapshotOfTheRowWaitsForTheLateRowsOfAll(t *testing.T) {
	t.Parallel()
	g, s, _, tx := heldUp(t)
	if g.sees(tx) {
		t.Error("the row's snapshot sees late rows that are not settled")
	}
	if got := g.members(); !slices.Equal(got, []int32{0, 1, 2, 3}) {
		t.Errorf("partitions %v share the row", got)
	}
	got := g.drain(g.crash(s))
	late := slices.DeleteFunc(slices.Clone(got), func(text string) bool { return text == "other" }) // of a read in flight
	wantTexts(t, "after a crash", late, []string{"late1", "late2"})
}

// It goes on when they are settled.
func TestTheSnapshotOfTheRowGoesOnWithTheLastLateRow(t *testing.T) {
	t.Parallel()
	g, s, p, tx := heldUp(t)
	g.settle(s, done(p))
	if !g.sees(tx) {
		t.Error("all is settled, and the row's snapshot has not moved")
	}
	wantTexts(t, "after a crash", g.drain(g.crash(s)), nil)
}

// A partition that holds the snapshot up for more than a few reads gets a cursor of its own, and joins the row again when
// a common read was settled.
func TestAPartitionThatIsHeldUpGetsACursorOfItsOwn(t *testing.T) {
	t.Parallel()
	g, s, p, tx := heldUp(t)
	for i := range 2 * maxOutstanding {
		g.write(keyIn(2, 4), fmt.Sprint("more", i))
		g.settle(s, done(g.read(s)))
	}
	if got := g.members(); !slices.Equal(got, []int32{0, 2, 3}) || !g.sees(tx) {
		t.Errorf("partitions %v share the row, whose snapshot sees the late rows: %v; want the others to have gone on", got, g.sees(tx))
	}
	if pgtest.One[bool](t, g.Pool, `SELECT pg_visible_in_snapshot($1::xid8, snapshot) FROM `+g.Table("partitions")+` WHERE partition_id = 1`, tx) {
		t.Error("the partition's own snapshot sees its late rows, which are not settled")
	}
	m := done(p) // of partition 1 alone: the others are settled long since
	m.Done = slices.DeleteFunc(m.Done, func(d store.Done) bool { return d.Partition != 1 })
	m.Done[0].N = 1
	g.settle(s, m)
	next := g.crash(s)
	wantTexts(t, "after a crash", g.drain(next), []string{"late2"})
	g.drain(next)
	if got := g.members(); !slices.Equal(got, []int32{0, 1, 2, 3}) {
		t.Errorf("partitions %v share the row in the end", got)
	}
	wantTexts(t, "after another", g.drain(g.crash(next)), nil)
}

// Every 30 seconds the snapshot is settled even if nothing moved: an old one makes the first read after a restart a scan of
// everything since.
func TestTheSnapshotIsSettledThoughNothingMoved(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.join()
	tr.know(s)
	g.drain(s)
	g.drain(s)
	others := newRig(t, 1) // transactions of others move the server's snapshot
	others.write("a", "1")
	tx := pgtest.One[string](t, g.Pool, `SELECT pg_current_xact_id()::text`)
	g.read(s)
	tr.take()
	g.renew(s)
	if asked, _ := tr.take(); slices.Contains(namesOf(asked), "settle") || g.sees(tx) {
		t.Errorf("settled at once: %v", namesOf(asked))
	}
	s.mu.Lock()
	s.settled = s.settled.Add(-cursorAge)
	s.mu.Unlock()
	g.renew(s)
	if asked, _ := tr.take(); !slices.Contains(namesOf(asked), "settle") || !g.sees(tx) {
		t.Errorf("after %s: %v", cursorAge, namesOf(asked))
	}
	g.renew(s)
	if asked, _ := tr.take(); slices.Contains(namesOf(asked), "settle") {
		t.Errorf("settled again at once: %v", namesOf(asked))
	}
}

// The row has one snapshot for all partitions of a relay: with many open transactions it is what a settle consists of.
func TestASettleWritesOneSnapshotForAllPartitions(t *testing.T) {
	t.Parallel()
	const partitions, open = 64, 100
	g, tr := newRig(t, partitions).traced()
	s := g.join()
	tr.know(s)
	g.drain(s)
	g.drain(s)
	g.prepared(open)
	for part := range partitions {
		g.write(keyIn(part, partitions), "x")
	}
	p := g.read(s)
	if len(p.Parts) != partitions {
		t.Fatalf("%d parts", len(p.Parts))
	}
	tr.take()
	g.settle(s, done(p))
	asked, _ := tr.take()
	snapshot, others := asked[0].args[4].(string), 0
	for _, arg := range asked[0].args[5:] {
		switch arg := arg.(type) {
		case string:
			others += len(arg)
		case []string:
			others += len(strings.Join(arg, ""))
		}
	}
	if strings.Count(snapshot, ",") < open-1 || others > len(snapshot)/2 {
		t.Errorf("the settle sends a snapshot of %d bytes, and %d bytes of other text", len(snapshot), others)
	}
	var size, row, moved int
	err := g.Pool.QueryRow(t.Context(), `SELECT pg_column_size(snapshot), pg_column_size(c.*),
		(SELECT count(*) FROM `+g.Table("partitions")+` p WHERE p.xmin = c.xmin) FROM `+g.Table("cursors")+` c`).Scan(&size, &row, &moved)
	if err != nil {
		t.Fatal(err)
	}
	if moved > 0 || size < 4*open || row > size+20*partitions+500 {
		t.Errorf("the settle wrote a row of %d bytes with a snapshot of %d, and %d rows of partitions", row, size, moved)
	}
}

// prepared leaves transactions open, on no connection.
func (g *rig) prepared(n int) {
	g.t.Helper()
	conn, err := g.Pool.Acquire(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Release()
	g.t.Cleanup(func() {
		for i := range n {
			if _, err := g.Pool.Exec(context.Background(), fmt.Sprintf(`ROLLBACK PREPARED '%s-%d'`, g.Schema, i)); err != nil {
				g.t.Error(err)
			}
		}
	})
	for i := range n {
		text := fmt.Sprintf(`BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '%s-%d'`, g.Schema, i)
		if _, err := conn.Exec(g.t.Context(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
			g.t.Fatal(err)
		}
	}
}
