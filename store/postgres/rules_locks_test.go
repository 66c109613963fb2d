package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// refusals counts what a pool's server answered to statements, by SQLSTATE.
type refusals struct {
	mu    sync.Mutex
	codes map[string]int
}

func (r *refusals) note(err error) {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.codes[e.Code]++
	}
}

func (r *refusals) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (r *refusals) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	r.note(d.Err)
}

func (r *refusals) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (r *refusals) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.note(d.Err)
}
func (r *refusals) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// actor is a relay that does, in any order, all that relays do, and fares badly: its lease ends again and again.
type actor struct {
	g       *rig
	random  *rand.Rand
	admin   *Admin
	session *Session
	came    map[string]bool
	pages   []store.Page
	did     map[string]int
}

func (a *actor) join(ctx context.Context) error {
	id := outbox.NewID()
	r := store.Relay{ID: id, Name: id.String(), Lease: time.Hour, Heartbeat: time.Nanosecond} // each Renew is a heartbeat
	s, err := a.g.store.Join(ctx, r, store.Sink{Name: "orders"})
	switch {
	case err == nil:
		a.session, a.pages = s.(*Session), nil
	case errors.Is(err, errNoRow): // taken over before it had begun
		return nil
	}
	return err
}

func (a *actor) held() []int {
	if a.session.usable("") != nil {
		return nil
	}
	return held(a.session)
}

func (a *actor) read(ctx context.Context) error {
	p, err := a.session.Read(ctx, store.Room{Partitions: a.held(), Messages: 50, Bytes: 1 << 20})
	for _, text := range payloads(p) {
		a.came[text] = true
	}
	if err == nil {
		a.pages = append(a.pages, p)
	}
	return err
}

// settle settles what was read. Some of it fails.
func (a *actor) settle(ctx context.Context) error {
	m := done(a.pages...)
	for _, p := range a.pages {
		for _, part := range p.Parts {
			for i := range part.Records {
				v := verdictOf(part.Records[i], store.Verdict{})
				switch n := a.random.Intn(8); {
				case part.Records[i].Ahead:
					v.To, v.Reason = store.Park, store.ReasonScheduled
				case part.Records[i].Blocked:
					v.To, v.Reason = store.Park, store.ReasonBehind
				case n == 0:
					v.To, v.Reason, v.Attempts = store.Park, store.ReasonRetry, 1
				case n == 1:
					v.To, v.Blocks = store.Dead, true
				default:
					continue
				}
				m.Verdicts = append(m.Verdicts, v)
			}
		}
	}
	_, err := a.session.Settle(ctx, m)
	a.pages = nil
	return err
}

// retry tries heads again.
func (a *actor) retry(ctx context.Context) error {
	h, err := a.session.Heads(ctx, a.held(), 20)
	if err != nil {
		return err
	}
	var m store.Settlement
	for _, p := range h.Due {
		v := verdictOf(store.Record{Record: p.Record}, store.Verdict{FromParked: true, To: store.Out})
		switch a.random.Intn(4) {
		case 0:
			v.To, v.Reason, v.Attempts = store.Park, store.ReasonRetry, p.Attempts+1
		case 1:
			v.To, v.Blocks = store.Dead, true
		}
		m.Verdicts = append(m.Verdicts, v)
	}
	_, err = a.session.Settle(ctx, m)
	return err
}

// repair is a person, who requeues or discards whatever is there.
func (a *actor) repair(ctx context.Context) error {
	var id, table string
	query := `(SELECT id::text, 'dead' FROM outbox_dead ORDER BY random() LIMIT 1) UNION ALL (SELECT id::text, 'parked' FROM outbox_parked ORDER BY random() LIMIT 1)`
	if err := a.g.Pool.QueryRow(ctx, sqlOf(a.g.DB, query)).Scan(&id, &table); err != nil {
		return nil //nolint:nilerr // nothing is there
	}
	parsed, err := outbox.ParseID(id)
	if err != nil {
		return err
	}
	act := store.Act{Sink: "orders", ID: parsed, Actor: "test", Reason: "because"}
	if table == "dead" && a.random.Intn(2) == 0 {
		err = a.admin.Requeue(ctx, act, true)
	} else {
		err = a.admin.Discard(ctx, act)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrStateConflict) {
		return nil
	}
	return err
}

// step does one of all these things.
func (a *actor) step(ctx context.Context) (err error) {
	if a.session == nil || errors.Is(a.session.usable(""), store.ErrFenced) {
		return a.join(ctx)
	}
	what := []string{"renew", "renew", "read", "read", "settle", "settle", "retry", "give back", "repair", "repair", "expire", "close"}[a.random.Intn(12)]
	switch what {
	case "renew":
		_, err = a.session.Renew(ctx, true)
	case "read":
		err = a.read(ctx)
	case "settle":
		err = a.settle(ctx)
	case "retry":
		err = a.retry(ctx)
	case "give back":
		if parts := a.held(); len(parts) > 0 {
			a.pages = nil // and what is in flight comes again
			err = a.session.GiveBack(ctx, parts[:1+a.random.Intn(len(parts))])
		}
	case "repair":
		err = a.repair(ctx)
	case "expire": // of any relay
		_, err = a.g.Pool.Exec(ctx, sqlOf(a.g.DB, `UPDATE outbox_relays SET leased_until = clock_timestamp() - interval '1 second'
			WHERE id = (SELECT id FROM outbox_relays ORDER BY random() LIMIT 1)`))
	case "close":
		if a.random.Intn(5) == 0 {
			err = a.session.Close(ctx)
		}
	}
	if errors.Is(err, store.ErrReload) {
		a.pages = nil
		a.session.Reset()
		_, err = a.session.Renew(ctx, true)
	}
	switch {
	case err == nil:
		a.did[what]++
	case errors.Is(err, store.ErrReload), errors.Is(err, store.ErrFenced):
		a.did["lost"]++
		err = nil
	}
	return err
}

// Whatever relays and people do at once, they take their locks in one order: relay, cursor, partitions, parked. Nobody
// waits in a circle, no partition is orphaned, and no message is lost.
func TestLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	const actors, writers, partitions = 5, 2, 8
	g := newRig(t, partitions)
	r := &refusals{codes: map[string]int{}}
	pool := pgtest.Connect(t, g.URL, func(c *pgxpool.Config) { c.ConnConfig.Tracer, c.MaxConns = r, actors+writers+1 })
	g = &rig{DB: &pgtest.DB{Pool: pool, URL: g.URL, Schema: g.Schema, Prefix: g.Prefix}, store: openStore(t, g.DB, pool), t: t}
	admin, err := NewAdmin(pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	written := make([][]string, writers)
	for w := range writers {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				text := fmt.Sprint(w, "/", i)
				_, err := pool.Exec(t.Context(), sqlOf(g.DB, `INSERT INTO outbox_messages (topic, type, partition_key, payload, available_at)
					VALUES ('orders', 'OrderPaid', $1, convert_to($2, 'UTF8'), CASE WHEN $3 THEN clock_timestamp() + interval '5 ms' END)`),
					fmt.Sprint("key-", i%5), text, i%10 == 0)
				if err != nil {
					t.Error(err)
					return
				}
				written[w] = append(written[w], text)
			}
		})
	}
	all := make([]*actor, actors)
	for i := range all {
		a := &actor{g: g, random: seeded(int64(i)), admin: admin, came: map[string]bool{}, did: map[string]int{}}
		all[i] = a
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := a.step(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := r.codes["40P01"]; n > 0 {
		t.Errorf("%d deadlocks; refused by SQLSTATE: %v", n, r.codes)
	}
	g.wantNoOrphans()

	came, did := map[string]bool{}, map[string]int{}
	for _, a := range all {
		maps.Copy(came, a.came)
		for what, n := range a.did {
			did[what] += n
		}
	}
	g.Exec(t, sqlOf(g.DB, `UPDATE outbox_relays SET leased_until = clock_timestamp() - interval '1 second'`))
	last := g.enter()
	asleep(last)
	if l := g.renew(last); len(l.Owned) != partitions {
		t.Fatalf("in the end %v are owned", l.Owned)
	}
	for _, text := range g.drain(last) {
		came[text] = true
	}
	lost := slices.DeleteFunc(slices.Concat(written...), func(text string) bool { return came[text] })
	if len(lost) > 0 {
		t.Errorf("%d messages never came: %s", len(lost), strings.Join(lost, " "))
	}
	t.Logf("%d messages; %v; refused by SQLSTATE: %v", len(came), did, r.codes)
}

// A settle that changes lines locks them before any of their rows, as people's acts do: otherwise it may hold a row that a
// person waits for, who holds the line that it needs next, or neither sees what the other does to the line.
func TestASettleLocksTheLinesBeforeTheirRows(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	keys := keysIn(1, 4, 2)
	g.write(keys[0], "a")
	g.write(keys[1], "b")
	p := g.read(s)
	m := done(p)
	for _, r := range p.Parts[0].Records {
		m.Verdicts = append(m.Verdicts, verdictOf(r, store.Verdict{To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Attempts: 1}))
	}
	g.settle(s, m)
	again := store.Settlement{Verdicts: slices.Clone(m.Verdicts)}
	for i := range again.Verdicts {
		again.Verdicts[i].FromParked, again.Verdicts[i].Attempts = true, 2
	}
	x := g.open() // holds the second row up
	x.exec(`SELECT FROM `+g.Table("parked")+` WHERE id = $1 FOR UPDATE`, [16]byte(again.Verdicts[1].ID))
	settled, discarded := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Settle(context.WithoutCancel(t.Context()), again)
		settled <- err
	}()
	pgtest.Eventually(t, "the settle waits", func() bool { return g.waits(s) })
	go func() {
		_, err := g.Pool.Exec(context.WithoutCancel(t.Context()), sqlOf(g.DB, `SELECT outbox_discard('orders', $1::uuid, 'because')`), [16]byte(again.Verdicts[0].ID))
		discarded <- err
	}()
	var event string
	pgtest.Eventually(t, "the person waits", func() bool {
		event = pgtest.One[string](t, g.Pool, `SELECT coalesce(min(wait_event), '') FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, g.Schema)
		return event != ""
	})
	if event != "advisory" {
		t.Errorf("the person waits for a lock of kind %s, want the line's", event)
	}
	x.commit()
	if err := <-settled; err != nil {
		t.Errorf("settled: %v", err)
	}
	if err := <-discarded; err != nil {
		t.Errorf("discarded: %v", err)
	}
}
