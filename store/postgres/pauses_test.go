package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// paused is an outbox with a relay, and a message of key k that was read and not settled.
type paused struct {
	*rig
	t     *testing.T
	s     *Session
	admin *Admin
	act   store.PauseAct
	pause store.Pause
	page  store.Page
}

func newPaused(t *testing.T) *paused {
	t.Helper()
	g := newRig(t, 1)
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	p := &paused{rig: g, t: t, s: g.join(), admin: admin, act: store.PauseAct{Sink: "orders", Kind: store.PauseKey, Name: "k", Reason: "test"}}
	if p.pause, err = admin.Pause(t.Context(), p.act); err != nil {
		t.Fatal(err)
	}
	g.write("k", "a")
	p.page = g.read(p.s)
	return p
}

// settlement parks the message under the pause.
func (p *paused) settlement() store.Settlement {
	m := done(p.page)
	m.Verdicts = []store.Verdict{verdictOf(p.page.Parts[0].Records[0], store.Verdict{To: store.Park, Reason: store.ReasonPaused, Pause: p.pause.ID})}
	return m
}

// settling settles, held up before it can look at a line: its statement begins when release is called.
func (p *paused) settling() (release func(), settled chan error) {
	p.t.Helper()
	x := p.open()
	x.exec(sqlOf(p.DB, `SELECT outbox_lock_lines('orders', '{0}')`))
	settled = make(chan error, 1)
	go func() {
		_, err := p.s.Settle(context.WithoutCancel(p.t.Context()), p.settlement())
		settled <- err
	}()
	pgtest.Eventually(p.t, "the settle waits", func() bool { return p.waits(p.s) })
	return x.commit, settled
}

func (p *paused) resume() {
	p.t.Helper()
	if err := p.admin.Resume(p.t.Context(), p.act); err != nil {
		p.t.Fatal(err)
	}
}

// sweep removes what has ended, as relays and people do in passing.
func (p *paused) sweep() {
	p.t.Helper()
	p.Exec(p.t, sqlOf(p.DB, `SELECT outbox_sweep_pauses('orders')`))
}

func (p *paused) wantDue(when string) {
	p.t.Helper()
	h, err := p.s.Heads(p.t.Context(), []int{0}, 10)
	if err != nil || len(h.Due) != 1 || string(h.Due[0].Payload) != "a" {
		p.t.Errorf("%s: heads %+v, %v; want the message that was parked", when, h, err)
	}
}

func (p *paused) pauses() int {
	p.t.Helper()
	return pgtest.One[int](p.t, p.Pool, sqlOf(p.DB, `SELECT count(*) FROM outbox_pauses`))
}

// However a resume, the sweep after it and a settle that parks under the pause come together, what was parked is due.
func TestAPauseThatEndsWhileASettleParksStrandsNothing(t *testing.T) {
	t.Parallel()
	t.Run("before the settle", func(t *testing.T) {
		t.Parallel()
		p := newPaused(t)
		p.resume()
		p.settle(p.s, p.settlement())
		p.wantDue("resumed before")
		p.sweep()
		p.wantDue("and swept after")
	})
	t.Run("swept before the settle", func(t *testing.T) {
		t.Parallel()
		p := newPaused(t)
		p.resume()
		p.sweep()
		if n := p.pauses(); n != 0 {
			t.Errorf("%d pauses are left, want 0", n)
		}
		p.settle(p.s, p.settlement())
		p.wantDue("resumed and swept before")
	})
	t.Run("while the settle waits", func(t *testing.T) {
		t.Parallel()
		p := newPaused(t)
		release, settled := p.settling()
		p.resume()
		p.sweep()
		release()
		if err := <-settled; err != nil {
			t.Fatal(err)
		}
		p.wantDue("resumed while the settle waited")
	})
	t.Run("after the settle", func(t *testing.T) {
		t.Parallel()
		p := newPaused(t)
		p.settle(p.s, p.settlement())
		if h, err := p.s.Heads(t.Context(), []int{0}, 10); err != nil || len(h.Due) != 0 || len(h.Pauses) != 1 {
			t.Errorf("while it is paused: %+v, %v", h, err)
		}
		p.resume()
		p.sweep()
		p.wantDue("resumed after")
	})
}

// A settle that has parked under a pause and has not committed keeps the row: a sweep passes it by without waiting, and
// neither does a resume wait. What was parked is found when it is committed.
func TestASweepWaitsForNobodyAndStrandsNothing(t *testing.T) {
	t.Parallel()
	p := newPaused(t)
	x := p.open() // a settle, as far as it has got
	x.exec(sqlOf(p.DB, `SELECT id FROM outbox_pauses WHERE id = $1 FOR KEY SHARE`), p.pause.ID)
	x.exec(sqlOf(p.DB, `INSERT INTO outbox_parked (sink, place, partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, reason, due_at, pause)
		SELECT 'orders', seq, partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, 'paused', 'infinity', $1 FROM outbox_messages`), p.pause.ID)
	p.resume()
	p.sweep()
	if n := p.pauses(); n != 1 {
		t.Errorf("%d pauses, want the one that is parked under", n)
	}
	if h, err := p.s.Heads(t.Context(), []int{0}, 10); err != nil || len(h.Due) != 0 { // and it sweeps
		t.Errorf("before the commit: %+v, %v", h, err)
	}
	x.commit()
	p.wantDue("after the commit")
	p.sweep()
	p.wantDue("after another sweep")
}

// The settle's own statement holds the pause's row: without that a sweep would remove it before what is parked can be seen.
func TestASettleHoldsThePausesThatItParksUnder(t *testing.T) {
	t.Parallel()
	p := newPaused(t)
	x := p.open() // holds the pause's row up
	x.exec(sqlOf(p.DB, `SELECT id FROM outbox_pauses WHERE id = $1 FOR UPDATE`), p.pause.ID)
	settled := make(chan error, 1)
	go func() {
		_, err := p.s.Settle(context.WithoutCancel(t.Context()), p.settlement())
		settled <- err
	}()
	pgtest.Eventually(t, "the settle waits", func() bool { return p.waits(p.s) })
	x.exec(sqlOf(p.DB, `DELETE FROM outbox_pauses WHERE id = $1`), p.pause.ID)
	x.commit()
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	p.wantDue("the pause went while the settle waited for it")
}

// park parks a message of each of so many keys under a pause.
func (g *rig) park(pause int64, keys int) {
	g.t.Helper()
	g.Exec(g.t, sqlOf(g.DB, `INSERT INTO outbox_parked (sink, place, partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
		correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, reason, due_at, pause)
		SELECT 'orders', n, 0, 'key-' || n, n, '7', gen_random_uuid(), 'orders', 'OrderPaid', '', '', '{}', '', '', '', '', '', '', 0, now(), 'paused', 'infinity', $1
		FROM generate_series(1000, 999 + $2::int) n`), pause, keys)
}

// However many keys a pause holds, asking for heads touches as many pages as before, and reading looks at a few pages of an index for
// each message: whether its key waits.
func TestManyPausedKeysCostOthersLittle(t *testing.T) {
	t.Parallel()
	keys := sizeOf(t, "ONWARD_TEST_PAUSED_KEYS", 3000)
	g, tr := newRig(t, 1).traced()
	s := g.join()
	tr.know(s)
	admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	pause, err := admin.Pause(t.Context(), store.PauseAct{Sink: "orders", Kind: store.PauseTopic, Name: "orders.held", Reason: "test"})
	if err != nil {
		t.Fatal(err)
	}
	const asks = 50
	each := max(keys/5, 4000)
	measure := func(what string) (touched map[string]int) {
		t.Helper()
		g.insertMany(each)
		g.Exec(t, `ANALYZE `+g.Table("messages")+`, `+g.Table("parked"))
		g.drain(s)
		g.insertMany(each)
		touched = map[string]int{}
		tr.take()
		began := time.Now()
		for n := 0; n < each; {
			page := g.read(s)
			n += len(payloads(page))
			g.settle(s, done(page))
		}
		rate := float64(each) / time.Since(began).Seconds()
		began = time.Now()
		for range asks {
			if h, err := s.Heads(t.Context(), []int{0}, 512); err != nil || len(h.Due) > 0 || len(h.Pauses) != 1 {
				t.Fatalf("%+v, %v", h, err)
			}
		}
		took := time.Since(began) / asks
		asked, _ := tr.take()
		for _, q := range asked {
			if touched[q.name] == 0 && (q.name == "read_shares" || q.name == "heads") {
				touched[q.name] = g.buffers(q)
			}
		}
		t.Logf("%s: %.0f messages a second are read and settled, heads take %s; pages touched: %v", what, rate, took.Round(10*time.Microsecond), touched)
		return touched
	}
	before := measure("without paused keys")
	g.park(pause.ID, keys)
	after := measure(fmt.Sprint("with ", keys))
	if len(before) != 2 || after["heads"] > before["heads"]+20 || after["read_shares"] > before["read_shares"]+10*1000 {
		t.Errorf("touched %v before, %v with %d paused keys", before, after, keys)
	}
}

// A pause of many keys is resumed by changing one row; relays take up what it held in portions.
func TestResumingManyKeysChangesOneRow(t *testing.T) {
	t.Parallel()
	p := newPaused(t)
	keys := sizeOf(t, "ONWARD_TEST_PAUSED_KEYS", 3000)
	p.park(p.pause.ID, keys)
	before := pgtest.One[string](t, p.Pool, sqlOf(p.DB, `SELECT string_agg(xmin::text, ',') FROM (SELECT DISTINCT xmin::text FROM outbox_parked) x`))
	began := time.Now()
	p.resume()
	t.Logf("%d keys resumed in %s", keys, time.Since(began))
	if after := pgtest.One[string](t, p.Pool, sqlOf(p.DB, `SELECT string_agg(xmin::text, ',') FROM (SELECT DISTINCT xmin::text FROM outbox_parked) x`)); after != before {
		t.Errorf("parked rows are of transactions %s, they were of %s", after, before)
	}
	came := 0
	for range keys {
		h, err := p.s.Heads(t.Context(), []int{0}, 512)
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Due) == 0 {
			break
		}
		if len(h.Due) > 512 {
			t.Fatalf("%d heads at once, want at most 512", len(h.Due))
		}
		var m store.Settlement
		for _, d := range h.Due {
			v := verdictOf(store.Record{Record: d.Record}, store.Verdict{To: store.Out})
			v.FromParked = true
			m.Verdicts = append(m.Verdicts, v)
		}
		p.settle(p.s, m)
		came += len(h.Due)
	}
	if came != keys {
		t.Errorf("%d keys came, want %d", came, keys)
	}
	if n := p.pauses(); n != 0 {
		t.Errorf("%d pauses are left, want 0: what has ended and holds nothing is removed in passing", n)
	}
}

// The functions of psql refuse what Admin refuses, and the shipped grants let relays and people do what they do.
func TestPausesInPsql(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 1)
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_sinks (name) VALUES ('s')`))
	admin, relay, viewer := db.As(t, "onward_admin"), db.As(t, "onward_relay"), db.As(t, "onward_viewer")
	for sql, code := range map[string]string{
		`SELECT outbox_pause('s', 'key', 'k', ' ')`:                                                      "ON004",
		`SELECT outbox_pause('x', 'key', 'k', 'why')`:                                                    "ON002",
		`SELECT outbox_pause('s', 'key', 'k', 'why', clock_timestamp())`:                                 "ON007",
		`SELECT outbox_pause('s', 'key', 'k', 'why', 'infinity')`:                                        "23514",
		`SELECT outbox_pause('s', 'message', 'k', 'why')`:                                                "23514",
		`SELECT outbox_pause('s', 'topic', 'a.>.b', 'why')`:                                              "23514",
		`SELECT outbox_pause('s', 'topic', 'a..b', 'why')`:                                               "23514",
		`SELECT outbox_pause('s', 'sink', 's', 'why')`:                                                   "23514",
		`SELECT outbox_pause('s', 'key', '', 'why')`:                                                     "23514",
		`SELECT outbox_resume('s', 'key', 'k')`:                                                          "ON002",
		`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox_pause('s', 'key', 'k', 'why'); END`:        "ON005",
		`INSERT INTO outbox_pauses (sink, kind, name, reason, actor) VALUES ('s', 'sink', '', 'x', 'y')`: "42501",
	} {
		conn, err := admin.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), sqlOf(db, sql)).ReadAll()
		if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.Code != code {
			t.Errorf("%s: got %v, want SQLSTATE %s", sql, err, code)
		}
		_, _ = conn.Exec(t.Context(), "ROLLBACK")
		conn.Release()
	}
	for _, name := range []string{"orders", "orders.*", "*", ">", "a.*.>", "ünï.x"} {
		pgtest.One[int64](t, admin, sqlOf(db, `SELECT outbox_pause('s', 'topic', $1, 'why', clock_timestamp() + interval '1 hour')`), name)
	}
	if n := pgtest.One[int](t, viewer, sqlOf(db, `SELECT count(*) FROM outbox_pauses`)); n != 6 {
		t.Errorf("a viewer sees %d pauses, want 6", n)
	}
	if _, err := admin.Exec(t.Context(), sqlOf(db, `SELECT outbox_resume('s', 'topic', '>', 'done')`)); err != nil {
		t.Error(err)
	}
	if _, err := relay.Exec(t.Context(), sqlOf(db, `SELECT outbox_sweep_pauses('s')`)); err != nil {
		t.Error(err)
	}
	if _, err := relay.Exec(t.Context(), sqlOf(db, `SELECT FROM outbox_pauses FOR KEY SHARE`)); err != nil {
		t.Error(err)
	}
	got := pgtest.One[string](t, viewer, sqlOf(db, `SELECT string_agg(action || ' ' || (detail ->> 'kind') || ' ' || (detail ->> 'name') || ' ' || reason, ', ' ORDER BY id DESC) FROM outbox_audit WHERE detail ->> 'name' = '>'`))
	if want := "resume topic > done, pause topic > why"; got != want {
		t.Errorf("the audit says %q, want %q", got, want)
	}
	if n := pgtest.One[int](t, viewer, sqlOf(db, `SELECT count(*) FROM outbox_pauses`)); n != 5 {
		t.Errorf("%d pauses, want 5: one has ended", n)
	}
}
