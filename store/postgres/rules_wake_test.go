package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// ear counts the notifications that writers of one outbox send.
type ear struct {
	g    *rig
	conn *pgx.Conn
}

func (g *rig) ear() *ear {
	g.t.Helper()
	conn, err := pgx.Connect(g.t.Context(), g.URL)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(g.t.Context(), "LISTEN "+g.Prefix+"wake"); err != nil {
		g.t.Fatal(err)
	}
	return &ear{g, conn}
}

// heard is how many have come since it was last asked. What the server was told before is delivered before an answer.
func (e *ear) heard() (n int) {
	e.g.t.Helper()
	e.g.Exec(e.g.t, `SELECT pg_notify($1, $2)`, e.g.Prefix+"wake", "end "+e.g.Schema)
	ctx, cancel := context.WithTimeout(e.g.t.Context(), 10*time.Second)
	defer cancel()
	for {
		got, err := e.conn.WaitForNotification(ctx)
		if err != nil {
			e.g.t.Fatal(err)
		}
		switch got.Payload {
		case e.g.Schema:
			n++
		case "end " + e.g.Schema:
			return n
		}
	}
}

// mark is what a relay does before it sleeps.
func (g *rig) mark() {
	g.t.Helper()
	n, err := newNames(g.Schema, g.Prefix)
	if err != nil {
		g.t.Fatal(err)
	}
	g.Exec(g.t, sessionStatement(n, "mark", 0), awaits.Milliseconds())
}

// endMark lets a mark's time be over.
func (g *rig) endMark() {
	g.t.Helper()
	g.Exec(g.t, sqlOf(g.DB, `SELECT setval('outbox_asleep', (last_value >> 16) - 60000 << 16) FROM outbox_asleep`))
}

// Writers notify where a relay sleeps: the first one does, and then few, whoever and how many they are. A mark that nobody took back, because its
// relay has died, runs out by itself.
func TestWritersNotifyWhileARelaySleeps(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	e := g.ear()
	g.write("a", numbered("", 20)...)
	if n := e.heard(); n != 0 {
		t.Errorf("no relay sleeps, and %d of 20 writers notify", n)
	}
	for range 3 {
		g.mark()
		g.write("a", "1")
		if n := e.heard(); n != 1 {
			t.Errorf("a relay sleeps, and one writer notifies %d times", n)
		}
		began := time.Now()
		g.write("a", numbered("", 50)...)
		if n := e.heard(); time.Since(began) < awaits && (n > 9 || n == 50) {
			t.Errorf("after the first, %d of 50 writers notify within %v: want at most 9 for a mark", n, time.Since(began))
		}
	}
	g.mark()
	g.endMark()
	g.write("a", numbered("", 5)...)
	if n := e.heard(); n != 0 {
		t.Errorf("the mark is over, and %d of 5 writers notify", n)
	}
	g.mark()
	g.Exec(t, sqlOf(g.DB, `INSERT INTO outbox_messages (topic, type, payload) SELECT 't', 'T', '' FROM generate_series(1, 1000)`))
	if n := e.heard(); n != 1 {
		t.Errorf("a statement with 1000 messages notifies %d times", n)
	}
}

// A writer that rolls back takes its notification along, and not those of the writers after it.
func TestARolledBackWriterDoesNotSilenceTheNext(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	e := g.ear()
	g.mark()
	tx, err := g.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), fmt.Sprintf(insert, g.Table("messages")), "a", "never"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := e.heard(); n != 0 {
		t.Errorf("a transaction that was rolled back notified %d times", n)
	}
	heard := 0
	pgtest.Eventually(t, "a writer notifies again", func() bool {
		g.write("a", "x")
		heard += e.heard()
		return heard > 0
	})
}

// Nothing of the wake-up can fail a writer: it needs no right on anything of it, and what its search_path or its session says
// decides nothing.
func TestAProducerNeedsNoRightToWake(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	e := g.ear()
	pool := g.As(t, "onward_producer")
	for _, sql := range []string{
		`SELECT 1`, `SET search_path = pg_temp`, `SET row_security = off`, `SET default_transaction_isolation = 'serializable'`,
		`CREATE TEMP TABLE pg_notify (x int)`,
	} {
		g.mark()
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), fmt.Sprintf(insert, g.Table("messages")), "a", "x"); err != nil {
			t.Errorf("after %s: %v", sql, err)
		}
		conn.Release()
		if n := e.heard(); n != 1 {
			t.Errorf("after %s: the writer notified %d times", sql, n)
		}
	}
	if _, err := pool.Exec(t.Context(), sqlOf(g.DB, `SELECT setval('outbox_asleep', 1)`)); err == nil {
		t.Error("a producer may set the mark")
	}
}

// A transaction that has notified cannot be prepared; while no relay sleeps that wants to be woken, none notifies.
func TestPreparedTransactionsWorkWhereNoRelayWantsToBeWoken(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	if pgtest.One[int](t, g.Pool, `SELECT current_setting('max_prepared_transactions')::int`) == 0 {
		t.Skip("the server has max_prepared_transactions = 0")
	}
	s := g.join()
	r := room(s, 1000)
	prepare := func(id string) error {
		conn, err := g.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for _, sql := range []string{`BEGIN`, fmt.Sprintf(`INSERT INTO %s (topic, type, payload) VALUES ('t', 'T', '%s')`, g.Table("messages"), id), `PREPARE TRANSACTION '` + g.Schema + id + `'`} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				_, _ = conn.Exec(t.Context(), `ROLLBACK`)
				return err
			}
		}
		return nil
	}
	if _, err := s.Read(t.Context(), r); err != nil { // as with relay.wakeup off: no hints are asked for
		t.Fatal(err)
	}
	if err := prepare("1"); err != nil {
		t.Fatal(err)
	}
	wantTexts(t, "while it is prepared", g.drain(s), nil)
	g.Exec(t, `COMMIT PREPARED '`+g.Schema+`1'`)
	wantTexts(t, "committed", g.drain(s), []string{"1"})
	g.mark()
	var refused *pgconn.PgError
	if err := prepare("2"); !errors.As(err, &refused) || refused.Code != "0A000" {
		t.Errorf("a relay sleeps that wants to be woken: prepare says %v; then relay.wakeup off would not be needed", err)
	}
}

// The queue of notifications is the whole server's: while some listener does not take its own and it is half full, writers are silent. A queue of
// 4 GB cannot be filled here, so that the function is made again with another limit in the place of the half.
func TestWritersAreSilentWhenTheNotifyQueueIsHalfFull(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	e := g.ear()
	source := pgtest.One[string](t, g.Pool, sqlOf(g.DB, `SELECT pg_get_functiondef('outbox_wake(text)'::regprocedure)`))
	const test = "pg_notification_queue_usage() < 0.5"
	if strings.Count(source, test) != 1 {
		t.Fatalf("outbox_wake does not ask %s:\n%s", test, source)
	}
	g.Exec(t, strings.Replace(source, test, "pg_notification_queue_usage() < -0.5", 1))
	g.mark()
	g.write("a", "1")
	if n := e.heard(); n != 0 {
		t.Errorf("the queue is over the limit, and the writer notifies %d times", n)
	}
	g.Exec(t, source)
	g.write("a", "2")
	if n := e.heard(); n != 1 {
		t.Errorf("the queue has room, and the writer notifies %d times", n)
	}
}

// A mark leaves no dead row, however often a relay falls asleep, and waits for no writer. The sequence is logged: a promoted
// standby has an unlogged one as zeros, which fails every insert.
func TestAMarkCostsNothingThatStays(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	e := g.ear()
	writer := g.open()
	writer.write("a", "open")
	for range 100 {
		g.mark()
		g.write("b", "1")
	}
	if n := e.heard(); n < 50 {
		t.Errorf("%d of 100 marks were seen while a transaction was open that had seen one", n)
	}
	writer.commit()
	if p := pgtest.One[string](t, g.Pool, sqlOf(g.DB, `SELECT relpersistence::text FROM pg_class WHERE oid = 'outbox_asleep'::regclass`)); p != "p" {
		t.Errorf("the sequence's persistence is %q", p)
	}
}
