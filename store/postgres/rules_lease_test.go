package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of leases, claims and take-overs.

// wantNoOrphans: every partition that has an owner has one that exists, and that has a cursor.
func (g *rig) wantNoOrphans() {
	g.t.Helper()
	orphans := pgtest.One[int](g.t, g.Pool, `SELECT count(*) FROM `+g.Table("partitions")+` p WHERE p.relay IS NOT NULL AND NOT EXISTS (
		SELECT FROM `+g.Table("relays")+` r JOIN `+g.Table("cursors")+` c ON c.relay = r.id WHERE r.id = p.relay AND c.sink = p.sink)`)
	if orphans > 0 {
		g.t.Errorf("%d partitions orphaned", orphans)
	}
}

// waits reports whether a statement of a session's relay waits for a lock.
func (g *rig) waits(s *Session) bool {
	return pgtest.One[bool](g.t, g.Pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock')`, s.member.application)
}

// A claim locks its own relay's row before anything else: while the relay is taken over it waits, holding nothing, and then
// gets nothing. Without that it would take partitions for a relay that is about to be gone.
func TestAClaimLocksItsOwnRelayFirst(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.enter()
	id := s.member.ID.String()
	x := g.open() // the take-over, step by step
	x.exec(g.store.text("lock_relay"), id, true)
	type renewal struct {
		store.Lease
		err error
	}
	renewed := make(chan renewal, 1)
	go func() {
		l, err := s.Renew(context.WithoutCancel(t.Context()), true)
		renewed <- renewal{l, err}
	}()
	pgtest.Eventually(t, "the claim waits", func() bool { return g.waits(s) })
	if free := pgtest.All[int](t, g.Pool, `SELECT partition_id FROM `+g.Table("partitions")+` WHERE relay IS NULL FOR UPDATE SKIP LOCKED`); len(free) != 4 {
		t.Errorf("the claim waits for its relay's row and has taken all partitions but %v", free)
	}
	x.exec(g.store.text("free"), id)
	x.exec(g.store.text("unregister"), id)
	x.commit()
	if r := <-renewed; r.err != nil || len(r.Owned) > 0 {
		t.Errorf("the claim of a relay that was taken over: %v, %v; want nothing", r.Owned, r.err)
	}
	g.wantNoOrphans()
	asleep(s)
	if _, err := s.Renew(t.Context(), true); !errors.Is(err, store.ErrFenced) {
		t.Errorf("then: %v", err)
	}
	if next := g.join(); len(held(next)) != 4 {
		t.Errorf("the next relay holds %v", held(next))
	}
}

// A relay that leaves, or whose lease is over, claims nothing.
func TestARelayThatIsNotLiveClaimsNothing(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"expired": `leased_until = clock_timestamp() - interval '1 second'`, "draining": `draining = true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			s := g.enter()
			g.Exec(t, `UPDATE `+g.Table("relays")+` SET `+set)
			if l := g.renew(s); len(l.Owned) > 0 || l.Surplus > 0 {
				t.Errorf("it holds %v, surplus %d", l.Owned, l.Surplus)
			}
			if err := s.claim(t.Context(), "claim", 4); err != nil || len(held(s)) > 0 { // it was live when it looked
				t.Errorf("it claimed %v, %v", held(s), err)
			}
		})
	}
}

// A claim that is carried out only after its relay has given up waiting and loaded its session again takes nothing: found by the next
// look, it would have the session loaded a second time, and all that is unsettled published once more.
func TestAClaimThatComesAfterAReloadTakesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.enter()
	late := s.claiming(4)
	_ = s.fail("claim", "its fate is unknown", context.DeadlineExceeded)
	s.Reset()
	if _, err := s.Renew(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	g.Exec(t, s.sql["claim"], late...)
	if l, err := s.Renew(t.Context(), false); err != nil || len(l.Owned) > 0 {
		t.Errorf("it holds %v, %v", l.Owned, err)
	}
	if l := g.renew(s); len(l.Owned) != 4 {
		t.Errorf("then it claims %v", l.Owned)
	}
}

// A claim that its relay does not know of is found by the next look: the session is loaded again, and the partition is served.
func TestAClaimThatNobodyKnowsOfIsFound(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.enter()
	for part := range 4 {
		g.write(keyIn(part, 4), fmt.Sprint(part))
	}
	if err := s.claim(t.Context(), "claim", 2); err != nil {
		t.Fatal(err)
	}
	wantTexts(t, "of two partitions", sorted(g.drain(s)), []string{fmt.Sprint(held(s)[0]), fmt.Sprint(held(s)[1])})
	known := held(s)
	g.Exec(t, s.sql["claim"], s.claiming(1)...)
	if _, err := s.Renew(t.Context(), true); !errors.Is(err, store.ErrReload) {
		t.Fatalf("a partition is owned that is not known: %v, want ErrReload", err)
	}
	l := g.renew(s) // and claims the last one
	if len(l.Owned) != 4 {
		t.Fatalf("%v are owned, want 4", l.Owned)
	}
	for _, o := range l.Owned {
		if epoch := pgtest.One[int64](t, g.Pool, `SELECT epoch FROM `+g.Table("partitions")+` WHERE partition_id = $1`, o.Partition); o.Epoch != epoch {
			t.Errorf("partition %d has epoch %d, and is held with %d", o.Partition, epoch, o.Epoch)
		}
	}
	want := slices.DeleteFunc([]string{"0", "1", "2", "3"}, func(text string) bool {
		return text == fmt.Sprint(known[0]) || text == fmt.Sprint(known[1])
	})
	wantTexts(t, "of the others", sorted(g.drain(s)), want)
	g.wantNoOrphans()
}

// loss is a connection to the server that breaks when a statement was sent and done, and before its answer arrives.
type loss struct {
	mu   sync.Mutex
	mark []byte      // in the statement; nil: nothing is lost
	done func() bool // it has taken effect
}

func (l *loss) arm(mark string, done func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark, l.done = []byte(mark), done
}

// sent returns the condition of a statement that is to be lost.
func (l *loss) sent(p []byte) (done func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mark == nil || !bytes.Contains(p, l.mark) {
		return nil
	}
	l.mark = nil
	return l.done
}

type lossyConn struct {
	net.Conn
	loss *loss
	mu   sync.Mutex
	done func() bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if done := c.loss.sent(p); done != nil {
		c.mu.Lock()
		c.done = done
		c.mu.Unlock()
	}
	return c.Conn.Write(p)
}

func (c *lossyConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	done := c.done
	c.done = nil
	c.mu.Unlock()
	if done == nil {
		return c.Conn.Read(p)
	}
	deadline := time.Now().Add(10 * time.Second)
	for !done() && time.Now().Before(deadline) {
		continue // each turn asks the server
	}
	return 0, errors.Join(io.ErrUnexpectedEOF, c.Conn.Close())
}

// lossy is the outbox with a store whose answers can be lost. Its statements travel as text, so that they can be told.
func (g *rig) lossy() (*rig, *loss) {
	g.t.Helper()
	l := &loss{}
	pool := pgtest.Connect(g.t, g.URL, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &lossyConn{Conn: conn, loss: l}, err
		}
	})
	return &rig{DB: g.DB, store: openStore(g.t, g.DB, pool), t: g.t}, l
}

// A claim, settle, give-back or renewal whose answer was lost makes the session void: it goes on from what the database
// says, and nothing is lost or comes twice.
func TestALostAnswerIsLookedUp(t *testing.T) {
	t.Parallel()
	texts := numbered("", 4)
	for name, c := range map[string]struct {
		mark  string // in the statement
		table string // that it changes
		act   func(t *testing.T, s *Session, p store.Page) error
		then  []string
	}{
		"claim": {`FOR KEY SHARE OF r, c`, "partitions", func(t *testing.T, s *Session, _ store.Page) error {
			_, err := s.Renew(t.Context(), true)
			return err
		}, texts},
		"settle": {`c.no = $3`, "cursors", func(t *testing.T, s *Session, p store.Page) error {
			_, err := s.Settle(t.Context(), done(p))
			return err
		}, nil},
		"give back": {`c.no = $3`, "partitions", func(t *testing.T, s *Session, _ store.Page) error {
			return s.GiveBack(t.Context(), held(s))
		}, texts},
		"renewal": {`WITH beat AS`, "relays", func(t *testing.T, s *Session, _ store.Page) error {
			asleep(s)
			_, err := s.Renew(t.Context(), true)
			return err
		}, texts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, loss := newRig(t, 4).lossy()
			s := g.enter()
			for part, text := range texts {
				g.write(keyIn(part, 4), text)
			}
			var p store.Page
			if name != "claim" {
				g.renew(s)
				p = g.read(s)
				wantTexts(t, "at first", sorted(payloads(p)), texts)
			}
			before := g.rows(c.table)
			loss.arm(c.mark, func() bool { return g.rows(c.table) != before })
			if err := c.act(t, s, p); !errors.Is(err, store.ErrReload) {
				t.Fatalf("its answer was lost: %v, want ErrReload", err)
			}
			if g.rows(c.table) == before {
				t.Fatal("it took no effect")
			}
			if err := s.usable(name); !errors.Is(err, store.ErrReload) {
				t.Errorf("the session is not void: %v", err)
			}
			if _, err := s.Renew(t.Context(), true); !errors.Is(err, store.ErrReload) {
				t.Errorf("a renewal of a void session whose caller may not know: %v, want ErrReload", err)
			}
			if l := g.renew(s); len(l.Owned) != 4 {
				t.Errorf("%v are owned, want 4", l.Owned)
			}
			wantTexts(t, "then", sorted(g.drain(s)), c.then)
			wantTexts(t, "after a crash", g.drain(g.crash(s)), nil)
			g.wantNoOrphans()
		})
	}
}

// A lease that ends later than two leases from now is from before the database's clock went back: it counts as over.
func TestALeaseTooFarAheadCountsAsOver(t *testing.T) {
	t.Parallel()
	ahead := func(g *rig, s *Session) {
		g.Exec(g.t, `UPDATE `+g.Table("relays")+` SET leased_until = clock_timestamp() + 3 * lease WHERE id = $1::text::uuid`, s.member.ID.String())
	}
	t.Run("for another relay", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, 4)
		s := g.join()
		next := g.enter()
		ahead(g, s)
		asleep(next)
		if l := g.renew(next); len(l.Owned) != 4 {
			t.Errorf("%v are owned, want all 4", l.Owned)
		}
		asleep(s)
		if _, err := s.Renew(t.Context(), true); !errors.Is(err, store.ErrFenced) {
			t.Errorf("the one before: %v", err)
		}
	})
	t.Run("for the next of its name", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, 4)
		s := g.join()
		ahead(g, s)
		if next := g.join(func(r *store.Relay) { r.Name = s.member.Name }); len(held(next)) != 4 {
			t.Errorf("%v are owned, want all 4", held(next))
		}
	})
}

// A heartbeat that finds no row says that the relay was replaced, at once.
func TestAHeartbeatWithoutARowIsFenced(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	next := g.crash(s)
	asleep(s)
	if _, err := s.Renew(t.Context(), true); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a heartbeat without a row: %v, want ErrFenced", err)
	}
	if l := g.renew(next); len(l.Owned) != 4 {
		t.Errorf("the next relay holds %v", l.Owned)
	}
}

// Of relays that ask for one name at once, one gets it. The others learn who has it, and leave nothing behind; it is free
// when its holder has left.
func TestOneOfManyRelaysGetsAName(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	var mu sync.Mutex
	var holders []store.Session
	ask := func() {
		s, err := g.store.Join(t.Context(), store.Relay{
			ID: outbox.NewID(), Name: "relay", Host: "here", PID: 7, Lease: time.Hour, Heartbeat: time.Minute,
		}, store.Sink{Name: "orders"})
		var taken *store.NameTaken
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			holders = append(holders, s)
		case !errors.As(err, &taken) || taken.Host != "here" || taken.PID != 7 || taken.Until < 59*time.Minute || taken.Until > time.Hour:
			t.Errorf("the name is taken: %v, %+v", err, taken)
		}
	}
	for round := range 3 {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(ask)
		}
		wg.Wait()
		if len(holders) != 1 {
			t.Fatalf("round %d: %d relays have one name", round, len(holders))
		}
		for _, table := range []string{"relays", "cursors"} {
			if n := pgtest.One[int](t, g.Pool, `SELECT count(*) FROM `+g.Table(table)); n != 1 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
		if err := holders[0].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		holders = nil
	}
}

// A take-over that cannot have the cursor's row, twice, ends the old relay's session that holds it, and no other: a settle
// whose last packet never came would hold it for hours.
func TestATakeOverEndsTheSessionThatHoldsTheCursor(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	g.write("a", "1")
	g.drain(s)
	hung, other := g.open(), g.open()
	hung.exec(`SET LOCAL application_name = '` + s.member.application + `'`)
	hung.exec(`DELETE FROM ` + g.Table("cursors"))
	other.exec(`SET LOCAL application_name = 'onward/` + outbox.NewID().String() + `'`)
	next := g.enter()
	g.expire(s)
	asleep(next)
	if l := g.renew(next); len(l.Owned) != 4 {
		t.Errorf("%v are owned, want all 4", l.Owned)
	}
	if _, err := hung.conn.Exec(t.Context(), `COMMIT`); err == nil {
		t.Error("the session that held the cursor goes on")
	}
	other.commit()
	wantTexts(t, "then", g.drain(next), nil)
	g.wantNoOrphans()
}
