package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// retain lets retention do all that there is to do, from the front, and returns how many messages it removed.
func (g *rig) retain(r store.Retention) (removed int) {
	g.t.Helper()
	g.store.retaining.Lock()
	g.store.sweep = sweep{}
	g.store.retaining.Unlock()
	return g.retainOn(r)
}

// retainOn goes on from where retention stands.
func (g *rig) retainOn(r store.Retention) (removed int) {
	g.t.Helper()
	for {
		done, err := g.store.Retain(g.t.Context(), r)
		if err != nil {
			g.t.Fatal(err)
		}
		removed += done.Messages
		if !done.More {
			return removed
		}
	}
}

func (g *rig) logged() int {
	g.t.Helper()
	return pgtest.One[int](g.t, g.Pool, `SELECT count(*)::int FROM `+g.Table("messages"))
}

// savage writes in transactions that stay open for a moment, so that numbers become visible in another order than their own.
type savage struct {
	*rig
	written atomic.Int64
	came    sync.Map
}

// write runs n transactions on a connection of its own.
func (v *savage) write(ctx context.Context, who, n int) error {
	conn, err := pgx.Connect(ctx, v.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for i := range n {
		if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for j := range 3 {
				if _, err := tx.Exec(ctx, fmt.Sprintf(insert, v.Table("messages")), fmt.Sprint("k", i%7), fmt.Sprintf("%d.%d.%d", who, i, j)); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rand.Float64()*0.004); err != nil { //nolint:gosec // a schedule
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		v.written.Add(3)
	}
	return nil
}

// publish reads and settles until ctx ends and nothing more comes.
func (v *savage) publish(ctx context.Context, s *Session) error {
	for {
		last := ctx.Err() != nil
		p, err := s.Read(v.t.Context(), room(s, 50))
		if err != nil {
			return err
		}
		if _, err := s.Settle(v.t.Context(), done(p)); err != nil {
			return err
		}
		for _, text := range payloads(p) {
			v.came.Store(text, true)
		}
		if last && len(p.Parts) == 0 && !p.More {
			return nil
		}
	}
}

// lost runs writers and a relay while retention removes what it takes for passed, and counts what never came.
func (v *savage) lost(writers, transactions int, remove func(ctx context.Context) error) (lost, removed int) {
	v.t.Helper()
	s := v.join()
	var writing, others sync.WaitGroup
	ctx, stop := context.WithCancel(v.t.Context())
	defer stop()
	failed := func(err error) {
		if err != nil && ctx.Err() == nil {
			v.t.Error(err)
		}
	}
	for who := range writers {
		writing.Go(func() { failed(v.write(ctx, who, transactions)) })
	}
	others.Go(func() { failed(v.publish(ctx, s)) })
	others.Go(func() {
		for ctx.Err() == nil {
			failed(remove(ctx))
		}
	})
	writing.Wait()
	stop()
	others.Wait()
	came := 0
	v.came.Range(func(any, any) bool { came++; return true })
	return int(v.written.Load()) - came, int(v.written.Load()) - v.logged()
}

// What lies below a cursor's number may still be on its way: its transaction commits late. The same statement by number alone
// removes it.
func TestRetentionGoesByTheSnapshotNotByTheNumberAlone(t *testing.T) {
	t.Parallel()
	const writers, transactions = 6, 25
	t.Run("by the snapshot", func(t *testing.T) {
		t.Parallel()
		v := &savage{rig: newRig(t, 4)}
		other := openStore(t, v.DB, v.Pool)
		turns := 0
		lost, removed := v.lost(writers, transactions, func(ctx context.Context) error {
			for _, s := range []*Store{v.store, other} { // by nobody's memory: from the front
				most := time.Duration(rand.IntN(30)) * time.Millisecond //nolint:gosec // a schedule
				if turns++; turns%4 == 0 {
					most = time.Minute // a busy machine comes to nothing within a few
				}
				s.retaining.Lock()
				s.sweep = sweep{}
				s.retaining.Unlock()
				short, cancel := context.WithTimeout(ctx, most)
				_, err := s.Retain(short, store.Retention{}) // killed at any point
				cancel()
				if err != nil && short.Err() == nil {
					return err
				}
			}
			return nil
		})
		t.Logf("lost %d of %d, removed %d meanwhile", lost, v.written.Load(), removed)
		if lost != 0 || removed == 0 {
			t.Errorf("%d messages never came; %d were removed meanwhile", lost, removed)
		}
		v.retain(store.Retention{})
		v.retain(store.Retention{})
		if n := v.logged(); n != 0 {
			t.Errorf("%d messages stay though all were published", n)
		}
	})
	t.Run("by the number", func(t *testing.T) {
		t.Parallel()
		v := &savage{rig: newRig(t, 4)}
		text := v.store.text("retain_log")
		byNumber := strings.Replace(text, "pg_visible_in_snapshot(m.txid, c.snapshot)", "true", 1)
		if byNumber == text {
			t.Fatal("the statement does not ask the snapshot as this test knows it")
		}
		lost, _ := v.lost(writers, transactions, func(ctx context.Context) error {
			return v.store.trip(ctx, "", func(b *pgx.Batch) {
				b.Queue(v.store.text("retain"), "", "")
				b.Queue(byNumber, []int32{0, 1, 2, 3}, []int64{0, 0, 0, 0}, 1000, 0)
			}, func(pgx.BatchResults) error { return nil })
		})
		t.Logf("by number alone: lost %d of %d", lost, v.written.Load())
		if lost == 0 {
			t.Error("by number alone nothing was lost: this test shows nothing")
		}
	})
}

// created_at is the producer's to choose; age goes by what the database noted of when numbers were given.
func TestAgeIsWhatTheDatabaseKnowsOfIt(t *testing.T) {
	t.Parallel()
	g := newRig(t, 2)
	s := g.join()
	const forged = `INSERT INTO %s (topic, type, payload, created_at) VALUES ('orders', 'OrderPaid', 'x', $1)`
	for _, at := range []string{"2019-01-01", "9999-12-31 23:59:59+00", "0001-01-01 00:00+00"} {
		g.Exec(t, fmt.Sprintf(forged, g.Table("messages")), at)
	}
	g.drain(s)
	day := store.Retention{Published: 24 * time.Hour}
	if n := g.retain(day); n != 0 {
		t.Errorf("%d messages were removed that have just been written", n)
	}
	g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '23 hours'`)
	if n := g.retain(day); n != 0 {
		t.Errorf("%d messages were removed after 23 hours", n)
	}
	g.write("k", "young")
	g.drain(s)
	g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '2 hours' WHERE at < now() - interval '1 hour'`)
	if n := g.retain(day); n != 3 || g.logged() != 1 {
		t.Errorf("%d messages were removed after 25 hours, want 3; %d are left, want 1", n, g.logged())
	}
	if n := pgtest.One[int](t, g.Pool, `SELECT count(*)::int FROM `+g.Table("marks")); n > 3 {
		t.Errorf("there are %d notes", n)
	}
}

// A clock that goes back leaves notes of its future behind. Nothing is removed too early for that, and nothing stays for ever.
func TestAClockThatWentBackDelaysRetentionAtMost(t *testing.T) {
	t.Parallel()
	g := newRig(t, 2)
	s := g.join()
	hour := store.Retention{Published: time.Hour}
	g.write("k", "a", "b")
	g.drain(s)
	g.Exec(t, `INSERT INTO `+g.Table("marks")+` (at, seq) VALUES (now() + interval '10 years', 2)`)
	if n := g.retain(hour); n != 0 {
		t.Errorf("%d messages were removed at once", n)
	}
	g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '61 minutes' WHERE at <= now()`)
	if n := g.retain(hour); n != 2 {
		t.Errorf("%d messages were removed after an hour, want 2", n)
	}
	g.write("k", "c")
	g.drain(s)
	g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '1 minute' WHERE at <= now()`) // for the next one
	g.retain(hour)
	g.Exec(t, `UPDATE `+g.Table("marks")+` SET at = at - interval '61 minutes' WHERE at <= now()`)
	if n := g.retain(hour); n != 1 {
		t.Errorf("%d messages were removed after another hour, want 1", n)
	}
	if n := pgtest.One[int](t, g.Pool, `SELECT count(*)::int FROM `+g.Table("marks")+` WHERE at > now()`); n != 0 {
		t.Errorf("%d notes of the future are left", n)
	}
}

// Where the server may have lost its tail, or the database came from elsewhere, cursors say nothing about the rows that are there.
func TestRetentionStopsWhereCursorsMaySayNothing(t *testing.T) {
	t.Parallel()
	for what, with := range map[string]string{
		"no token": `DELETE FROM outbox_incarnation`,
		"another token than the relay read under": `UPDATE outbox_incarnation SET one = true`,
		"a sequence that went back":               `SELECT setval('outbox_messages_seq_seq', 1)`,
		"a snapshot of the future":                `UPDATE outbox_cursors SET snapshot = '9000000000:9000000000:'`,
		"a sink without a cursor":                 `INSERT INTO outbox_sinks (name) VALUES ('half')`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 2)
			s := g.join()
			g.write("k", "a", "b", "c")
			g.drain(s)
			relay := store.Retention{Relay: s.member.ID}
			g.Exec(t, sqlOf(g.DB, with))
			if n := g.retain(relay); n != 0 {
				t.Errorf("%d messages were removed", n)
			}
		})
	}
}

// A sink is registered between two statements of retention, never during one: what is in the log then is its own.
func TestRetentionAndRegistrationsTakeTurns(t *testing.T) {
	t.Parallel()
	g := newRig(t, 2)
	s := g.join()
	g.write("k", "a", "b")
	g.drain(s)
	x := g.open()
	x.exec(g.store.text("lock_sinks"))
	if n := g.retain(store.Retention{}); n != 0 {
		t.Errorf("%d messages were removed while a sink was being registered", n)
	}
	registered := make(chan error, 1)
	go func() { registered <- g.store.Register(t.Context(), store.Sink{Name: "new"}) }()
	pgtest.Eventually(t, "the registration waits", func() bool {
		return pgtest.One[int](t, g.Pool, `SELECT count(*)::int FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND NOT l.granted AND a.query LIKE '%'||$1||'%'`, g.Schema) == 1
	})
	x.commit()
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	if n := g.retain(store.Retention{}); n != 0 {
		t.Errorf("%d messages were removed that the new sink has not read", n)
	}
}

// Retention goes on from where it stands: rows that it removed and that an old snapshot keeps on the disk cost it nothing, and neither
// does the size of the log.
func TestRetentionTouchesFewPages(t *testing.T) {
	t.Parallel()
	const partitions, chunk = 16, 1024
	rows := sizeOf(t, "ONWARD_TEST_RETAINED_ROWS", 6_000)
	g := newRig(t, partitions)
	g.Exec(t, `ALTER TABLE `+g.Table("messages")+` SET (autovacuum_enabled = off)`)
	s := g.join(func(r *store.Relay) { r.Page = 4096 })
	held := g.open() // a dump, say
	held.exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ` + g.Table("messages"))
	var parts []int32
	for part := range int32(partitions) {
		parts = append(parts, part)
	}
	sweep := func(from []int64) int {
		return g.buffers(question{sql: g.store.text("retain_log"), args: []any{parts, from, chunk / partitions, 0}})
	}
	front := make([]int64, partitions)
	var nothing, some []int
	g.store.sweep.front = time.Now().Add(time.Hour) // it is not time to begin at the front
	for range 2 {
		g.insertMany(rows)
		g.retainOn(store.Retention{})
		nothing = append(nothing, sweep(g.store.sweep.at)) // nobody has read anything: nothing may go
		for g.backlog() > 0 {
			g.settle(s, done(g.read(s)))
		}
		some = append(some, sweep(g.store.sweep.at))
		g.retainOn(store.Retention{})
	}
	t.Logf("over nothing: %d buffers, and %d with %d dead rows behind it; %d rows: %d and %d; from the front: %d",
		nothing[0], nothing[1], rows, chunk, some[0], some[1], sweep(front))
	if nothing[1] > nothing[0]+2*partitions {
		t.Errorf("a sweep over nothing touches %d buffers with %d dead rows behind it, %d without", nothing[1], rows, nothing[0])
	}
	if some[1] > some[0]+chunk/2 || some[0] > 8*chunk {
		t.Errorf("%d rows touch %d buffers with %d dead rows behind them, %d without", chunk, some[1], rows, some[0])
	}
	if n := sweep(front); n < 3*nothing[1] {
		t.Errorf("from the front it touches %d buffers: this test shows nothing", n)
	}
	if n := g.logged(); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	held.commit()
}

func (g *rig) backlog() int {
	g.t.Helper()
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		g.t.Fatal(err)
	}
	status, err := admin.Status(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	return int(status.Sinks[0].Backlog)
}

// What was committed late lies below where retention stands; it comes back for it.
func TestRetentionComesBackForWhatWasLate(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	s := g.join()
	late := g.open()
	late.write("k", "late")
	g.write("k", "early")
	g.drain(s)
	if n := g.retain(store.Retention{}); n != 1 {
		t.Errorf("%d messages were removed, want the early one", n)
	}
	g.store.sweep.front = time.Now().Add(time.Hour)
	late.commit()
	g.drain(s)
	if n := g.retainOn(store.Retention{}); n != 0 {
		t.Errorf("%d messages were removed from where it stands", n)
	}
	g.store.sweep.front = time.Now().Add(-frontEvery)
	if n := g.retainOn(store.Retention{}); n != 1 {
		t.Errorf("%d messages were removed once it was time to begin at the front, want the late one", n)
	}
}

// A relay's role may delete from the log, and nothing else.
func TestRelaysMayNotChangeTheLog(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	g.write("k", "a")
	relay := g.As(t, "onward_relay")
	for _, sql := range []string{`UPDATE outbox_messages SET topic = 'b'`, `TRUNCATE outbox_messages`, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('a', 'b', 'c')`} {
		if _, err := relay.Exec(t.Context(), sqlOf(g.DB, sql)); err == nil {
			t.Errorf("%s was not refused", sql)
		}
	}
	if _, err := relay.Exec(t.Context(), sqlOf(g.DB, `DELETE FROM outbox_audit`)); err == nil {
		t.Error("the audit can be deleted")
	}
}

// Copies of cursors stay a day, or as long as messages do.
func TestRetentionForgetsOldProgress(t *testing.T) {
	t.Parallel()
	g := newRig(t, 1)
	s := g.join()
	for _, text := range []string{"a", "b", "c"} {
		g.publish(s, "k", text)
		g.age(time.Minute)
	}
	before := g.copies()
	g.retain(store.Retention{})
	if n := g.copies(); n != before || n < 2 {
		t.Errorf("%d copies, %d before: they are minutes old", n, before)
	}
	g.age(25 * time.Hour)
	g.retain(store.Retention{Published: 48 * time.Hour})
	if n := g.copies(); n != before {
		t.Errorf("%d copies, %d before: messages of then may be there", n, before)
	}
	g.retain(store.Retention{})
	if n := g.copies(); n != 1 {
		t.Errorf("%d copies are left, want the newest", n)
	}
}
