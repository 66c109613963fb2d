package postgres

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The rules of the incarnation's token: each life of the server has its own.

// Every read, renewal, claim and settle carries the token that the session's memory was built under. With another one,
// or none, it does nothing, and the session goes on from the cursors in the database.
func TestEachStatementRefusesAnotherIncarnation(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]string{
		"another token": `UPDATE outbox_incarnation SET one = true`, "no token": `DELETE FROM outbox_incarnation`,
	} {
		for name, act := range map[string]func(t *testing.T, s *Session, p store.Page) error{
			"read": func(t *testing.T, s *Session, _ store.Page) error {
				p, err := s.Read(t.Context(), room(s, 10))
				if len(p.Parts) > 0 {
					t.Errorf("read %v", payloads(p))
				}
				return err
			},
			"renewal": func(t *testing.T, s *Session, _ store.Page) error {
				asleep(s)
				_, err := s.Renew(t.Context(), true)
				return err
			},
			"settle": func(t *testing.T, s *Session, p store.Page) error {
				_, err := s.Settle(t.Context(), done(p))
				return err
			},
			"give-back": func(t *testing.T, s *Session, _ store.Page) error { return s.GiveBack(t.Context(), held(s)[:1]) },
			"claim": func(t *testing.T, s *Session, _ store.Page) error {
				if l, err := s.Renew(t.Context(), true); err != nil || len(l.Owned) != 3 {
					t.Errorf("it holds %v of 3 partitions, %v", l.Owned, err)
				}
				_, err := s.Read(t.Context(), room(s, 10)) // and so it learns of it
				return err
			},
		} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				g := newRig(t, 4)
				s := g.join()
				for part := range 3 {
					g.write(keyIn(part, 4), numbered("", 3)[part])
				}
				p := g.read(s)
				if name == "claim" {
					if err := s.GiveBack(t.Context(), []int{3}); err != nil {
						t.Fatal(err)
					}
				}
				g.Exec(t, sqlOf(g.DB, change))
				before := g.outcomes()
				if err := act(t, s, p); !errors.Is(err, store.ErrReload) {
					t.Errorf("%s with %s: %v, want ErrReload", name, what, err)
				}
				if after := g.outcomes(); after != before {
					t.Errorf("%s with %s has an effect: before\n%s\nafter\n%s", name, what, before, after)
				}
				if l := g.renew(s); len(l.Owned) != 4 {
					t.Errorf("then it holds %v", l.Owned)
				}
				wantTexts(t, "again", sorted(g.drain(s)), numbered("", 3))
				if token := pgtest.One[string](t, g.Pool, `SELECT token::text FROM `+g.Table("incarnation")); token != s.token {
					t.Errorf("the token is %s, and the session goes by %s", token, s.token)
				}
				wantTexts(t, "after a crash", g.drain(g.crash(s)), nil)
			})
		}
	}
}

// lineage is what a new token changes.
func (g *rig) lineage() int {
	g.t.Helper()
	return pgtest.One[int](g.t, g.Pool, `SELECT value::int FROM `+g.Table("meta")+` WHERE name = 'lineage'`)
}

// However many ask for a new token at once, one is made, and the epochs rise once, in its transaction.
func TestOneTokenIsMadeHoweverManyAsk(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	before, lineage := g.epochs(), g.lineage()
	g.Exec(t, `DELETE FROM `+g.Table("incarnation"))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := g.store.incarnate(t.Context(), "r"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g.wantReborn(before, lineage)
	if p, err := s.Read(t.Context(), room(s, 10)); !errors.Is(err, store.ErrReload) {
		t.Errorf("read %v, %v", payloads(p), err)
	}
	g.renew(s)
}

// wantReborn wants the epochs to have risen once, to the clock's milliseconds, and puts them into before.
func (g *rig) wantReborn(before map[int]int64, lineage int) {
	g.t.Helper()
	clock := pgtest.One[int64](g.t, g.Pool, `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
	for part, epoch := range g.epochs() {
		if epoch < before[part]+1000 || epoch > clock || epoch < clock-time.Hour.Milliseconds() { // a second rise would lead beyond the clock
			g.t.Errorf("partition %d has epoch %d after %d, want the clock's %d or just before", part, epoch, before[part], clock)
		}
		before[part] = epoch
	}
	if now := g.lineage(); now != lineage+1 {
		g.t.Errorf("lineage %d after %d", now, lineage)
	}
	transactions := pgtest.One[int](g.t, g.Pool, `SELECT count(DISTINCT x::text) FROM (
		SELECT xmin FROM `+g.Table("incarnation")+` UNION ALL SELECT xmin FROM `+g.Table("partitions")+`
		UNION ALL SELECT xmin FROM `+g.Table("meta")+` WHERE name = 'lineage') t(x)`)
	if transactions != 1 {
		g.t.Errorf("token, epochs and lineage were written by %d transactions, want one", transactions)
	}
}

// Whoever restores a backup twice gets two lives of the same rows: epochs of the second are not those of the first, however often
// its partitions changed hands.
func TestTwoRestoresOfOneBackupHaveEpochsOfTheirOwn(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	backup := g.epochs()
	highest := map[int]int64{}
	for life := range 2 {
		for part, epoch := range backup {
			g.Exec(t, `UPDATE `+g.Table("partitions")+fmt.Sprintf(` SET epoch = %d WHERE partition_id = %d`, epoch, part))
		}
		g.Exec(t, `DELETE FROM `+g.Table("incarnation"))
		if err := g.store.incarnate(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		g.renew(s)
		for part, epoch := range g.epochs() {
			if epoch <= highest[part] {
				t.Errorf("life %d gives partition %d epoch %d again, after %d", life+1, part, epoch, highest[part])
			}
		}
		s = g.crash(s)
		maps.Copy(highest, g.epochs())
	}
}

// Each relay says that the server has had another life, whoever made the token: whoever did may not have heard of it.
func TestEachRelaySaysThatTheServerHadAnotherLife(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	log := g.openAsRelay()
	s := g.join()
	said := func() int { return len(log.lines("the server has crashed or was promoted or restored")) }
	if said() != 0 {
		t.Error("it says so before anything has happened")
	}
	for life := range 2 {
		g.Exec(t, `DELETE FROM `+g.Table("incarnation"))
		maker := g.store
		if life == 0 {
			maker = openStore(t, g.DB, g.Pool) // of a relay whose answer is lost
		}
		if err := maker.incarnate(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(t.Context(), room(s, 10)); !errors.Is(err, store.ErrReload) {
			t.Errorf("read %v, want ErrReload", err)
		}
		for range 2 {
			g.renew(s)
			if said() != life+1 {
				t.Errorf("after %d lives it has said so %d times", life+1, said())
			}
		}
		s = g.crash(s) // which another relay does not notice
	}
}

// A server that crashed has no token: the relays agree on a new one, and go on from the cursors in the database. What was
// read and not settled comes again, and nothing is lost.
func TestRelaysAgreeOnOneTokenAfterTheServerCrashed(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start()
	g := server.rig(4)
	pool := g.Pool
	a, b, ofA, ofB := g.pair()
	for _, s := range []*Session{a, b} {
		g.drain(s)
	}
	g.write(keyIn(ofA[0], 4), "a1", "a2")
	g.write(keyIn(ofB[0], 4), "b1", "b2")
	p := g.read(a)
	p.Parts[0].Records = p.Parts[0].Records[:1]
	g.settle(a, done(p))
	wantTexts(t, "b", payloads(g.read(b)), []string{"b1", "b2"})
	before, lineage, token := g.epochs(), g.lineage(), a.token

	backend := pgtest.One[int](t, pool, `SELECT pg_backend_pid()`)
	if err := syscall.Kill(backend, syscall.SIGKILL); err != nil { // and the server throws away its memory
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the server answers", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM `+g.Table("incarnation")).Scan(&n)
		return err == nil && n == 0
	})
	for _, s := range []*Session{a, b} {
		if p, err := s.Read(t.Context(), room(s, 10)); !errors.Is(err, store.ErrReload) || len(p.Parts) > 0 {
			t.Errorf("after the crash: %v, %v", payloads(p), err)
		}
	}
	var wg sync.WaitGroup
	for _, s := range []*Session{a, b} {
		wg.Go(func() {
			s.Reset()
			if _, err := s.Renew(t.Context(), true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g.wantReborn(before, lineage)
	if a.token != b.token || a.token == token {
		t.Errorf("tokens %s and %s after %s", a.token, b.token, token)
	}
	for _, s := range []*Session{a, b} {
		for _, o := range g.renew(s).Owned {
			if o.Epoch != before[o.Partition] {
				t.Errorf("partition %d is held with epoch %d, want %d", o.Partition, o.Epoch, before[o.Partition])
			}
		}
	}
	wantTexts(t, "a goes on", g.drain(a), []string{"a2"})
	wantTexts(t, "b goes on", g.drain(b), []string{"b1", "b2"})
}

// A server that came back without the last heartbeats, promoted or restored, has the lease end earlier than the relay believes. It
// must not publish on the strength of a renewal that is lost, or another one takes over beside it.
func TestALeaseIsOfTheServersLifeThatRenewedIt(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	g.renew(s)
	g.Exec(t, `DELETE FROM `+g.Table("incarnation"))
	g.Exec(t, `UPDATE `+g.Table("relays")+` SET leased_until = clock_timestamp() + interval '1 second'`)
	s.Reset()
	g.wantLeased(g.renew(s))

	s.Reset()
	s.mu.Lock()
	s.member.beating = true // another sink's session sends one, perhaps in the old life
	s.member.token = "another"
	s.mu.Unlock()
	if l := g.renew(s); !l.Until.IsZero() {
		t.Errorf("leased until %s, and nothing was renewed in this life", l.Until)
	}
	s.member.beaten()
	g.wantLeased(g.renew(s))
}

// wantLeased wants the lease to end no later than the database has it.
func (g *rig) wantLeased(l store.Lease) {
	g.t.Helper()
	until := pgtest.One[time.Time](g.t, g.Pool, `SELECT leased_until FROM `+g.Table("relays"))
	if l.Until.After(until) || time.Until(l.Until) <= 0 {
		g.t.Errorf("leased until %s, and the database has %s", l.Until, until)
	}
}
