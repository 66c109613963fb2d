package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// ofOneRelay are sessions of a relay on so many sinks, each holding all partitions.
func (g *rig) ofOneRelay(sinks int) (all []*Session) {
	g.t.Helper()
	r := store.Relay{ID: outbox.NewID(), Name: "relay", Host: "here", PID: 1, Lease: time.Hour, Heartbeat: time.Minute}
	for i := range sinks {
		joined, err := g.store.Join(g.t.Context(), r, store.Sink{Name: fmt.Sprint("sink-", i)})
		if err != nil {
			g.t.Fatal(err)
		}
		s := joined.(*Session)
		if l := g.renew(s); len(l.Owned) != 4 {
			g.t.Fatalf("%s holds %d partitions", s.sink, len(l.Owned))
		}
		g.drain(s)
		all = append(all, s)
	}
	return all
}

// Whatever sinks of a relay look at the same time, one statement says to each what is its own.
func TestSinksOfARelayLookTogether(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	sessions := g.ofOneRelay(4)
	tr.know(sessions[0])
	g.Exec(t, sqlOf(g.DB, `INSERT INTO outbox_pauses (sink, kind, name, reason, actor) VALUES ('sink-1', 'sink', '', 'a test', 'ann')`))
	g.park(0, 1) // on a sink that nobody serves
	g.Exec(t, sqlOf(g.DB, `UPDATE outbox_parked SET sink = 'sink-2', pause = NULL, due_at = clock_timestamp() + interval '1 hour'`))
	tr.take()
	m := sessions[0].member
	look, first := m.gather(sessions[0].sink)
	if !first {
		t.Fatal("somebody is looking")
	}
	type answer struct {
		sink  string
		owned int
		heads store.Heads
		err   error
	}
	answers := make(chan answer, len(sessions)-1)
	for _, s := range sessions[1:] {
		go func() {
			a := answer{sink: s.sink}
			if s == sessions[2] {
				s.mu.Lock()
				s.quiet = true
				s.mu.Unlock()
				a.heads, a.err = s.Heads(t.Context(), held(s), 10)
				a.owned = 4
			} else {
				var l store.Lease
				l, a.err = s.Renew(t.Context(), true)
				a.owned = len(l.Owned)
			}
			answers <- a
		}()
	}
	pgtest.Eventually(t, "all join the look", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(look.sinks) == len(sessions)
	})
	if asked, _ := tr.take(); len(asked) > 0 {
		t.Errorf("before it was sent: %v", namesOf(asked))
	}
	sessions[0].send(t.Context(), look)
	for range sessions[1:] {
		a := <-answers
		if a.err != nil || a.owned != 4 {
			t.Errorf("%s holds %d partitions: %v", a.sink, a.owned, a.err)
		}
		if next := a.heads.Next; a.sink == "sink-2" && (next < 59*time.Minute || next > time.Hour) {
			t.Errorf("the next parked message is due in %v", next)
		}
	}
	if asked, batches := tr.take(); !slices.Equal(namesOf(asked), []string{"look"}) || batches != 1 {
		t.Errorf("they looked by %v in %d batches", namesOf(asked), batches)
	}
	for i, v := range []view{look.views["sink-0"], look.views["sink-1"], look.views["sink-2"]} {
		if v.paused != (i == 1) || (v.due != nil) != (i == 2) || len(v.mine) != 4 || v.relays != 1 || *v.target != 4 {
			t.Errorf("sink-%d: %+v", i, v)
		}
	}
}

// A look that is on its way answers nobody who came later: what has happened meanwhile would be missed.
func TestALookThatWasSentAnswersNobodyWhoComesLater(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := g.ofOneRelay(1)[0]
	tr.know(s)
	look, _ := s.member.gather(s.sink)
	s.send(t.Context(), look)
	if next, first := s.member.gather(s.sink); !first || next == look {
		t.Error("it is joined after it was sent")
	} else {
		s.send(t.Context(), next)
	}
	if h, err := s.Heads(t.Context(), held(s), 10); err != nil || h.Pauses != nil {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, kind := range []string{"nothing", "paused", "due"} {
		switch kind {
		case "paused":
			g.Exec(t, sqlOf(g.DB, `INSERT INTO outbox_pauses (sink, kind, name, reason, actor) VALUES ('sink-0', 'sink', '', 'a test', 'ann')`))
		case "due":
			g.Exec(t, sqlOf(g.DB, `DELETE FROM outbox_pauses`))
			g.park(0, 1)
			g.Exec(t, sqlOf(g.DB, `UPDATE outbox_parked SET sink = 'sink-0', pause = NULL, due_at = clock_timestamp()`))
			s.mu.Lock()
			s.quiet = true
			s.mu.Unlock()
		}
		h, err := s.Heads(t.Context(), held(s), 10)
		if err != nil || len(h.Pauses) > 0 != (kind == "paused") || len(h.Due) > 0 != (kind == "due") {
			t.Errorf("%s: %+v, %v", kind, h, err)
		}
	}
}

// Whoever gives up takes nobody along: the others look again.
func TestALookThatIsGivenUpIsSentByAnother(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	sessions := g.ofOneRelay(2)
	m := sessions[0].member
	look, _ := m.gather(sessions[0].sink)
	renewed := make(chan error, 1)
	go func() {
		_, err := sessions[1].Renew(t.Context(), true)
		renewed <- err
	}()
	pgtest.Eventually(t, "the other one joins", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(look.sinks) == 2
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sessions[0].send(ctx, look)
	if err := <-renewed; err != nil || look.err == nil {
		t.Errorf("the other one: %v; whoever gave up: %v", err, look.err)
	}
}
