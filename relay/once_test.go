package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// once makes one pass, and returns how long it took.
func (s *stage) once(c relay.Config) (took time.Duration, err error) {
	s.Helper()
	r, err := relay.New(c)
	if err != nil {
		s.Fatal(err)
	}
	from := s.after()
	err = r.RunOnce(s.Context())
	return s.after() - from, err
}

// passes wants a pass that ends well within a time.
func (s *stage) passes(c relay.Config, within time.Duration) {
	s.Helper()
	if took, err := s.once(c); err != nil || took > within {
		s.Errorf("the pass took %v, want at most %v: %v", took, within, err)
	}
}

// wantLeft wants nobody registered, and this many messages without an outcome and parked.
func (s *stage) wantLeft(backlog, parked int64) {
	s.Helper()
	status, err := s.db.Admin().Status(s.Context())
	if err != nil || len(status.Sinks) == 0 {
		s.Fatalf("status %+v, %v", status, err)
	}
	k, n := status.Sinks[0], int64(0)
	for _, of := range k.Parked {
		n += of
	}
	if k.Backlog != backlog || n != parked || k.PartitionsOwned != 0 || status.RelaysLive != 0 {
		s.Errorf("%d wait, %d are parked, %d partitions are held by %d relays; want %d, %d, and nobody", k.Backlog, n, k.PartitionsOwned, status.RelaysLive, backlog, parked)
	}
}

// writeOn writes a message every moment until stop.
func (s *stage) writeOn(every time.Duration, keys ...string) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			s.write("t", keys[i%len(keys)], 1)
			wait(every)
		}
	}()
	return func() { cancel(); <-done }
}

func TestAPassPublishesWhatWasThereAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		for _, key := range []string{"a", "b", "c", ""} {
			s.write("t", key, make([]int, 1000)...)
		}
		s.passes(s.config(), time.Second)
		if n := s.broker.Len(); n != 4000 {
			t.Errorf("%d arrived, want 4000", n)
		}
		s.wantLeft(0, 0)
		s.passes(s.config(), time.Second) // with nothing to do
	})
}

// However much is written meanwhile, and although a key's line grows as fast as it goes out.
func TestAPassEndsWhileOthersWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Sinks[0].Retry = core.Retry{First: time.Millisecond, Fixed: true}
		c.Page = 50
		ids := s.write("t", "a", make([]int, 500)...)
		s.broker.SetFaults(membroker.Nth(1, membroker.Fault{Outcome: broker.Retry}))
		stop := s.writeOn(500*time.Microsecond, "a", "b", "")
		defer stop()
		s.passes(c, 5*time.Second)
		s.passes(c, 5*time.Second) // the first one parked the head, and all behind it
		came := map[outbox.ID]bool{}
		for _, m := range s.broker.All() {
			came[m.ID] = true
		}
		for i, id := range ids {
			if !came[id] {
				t.Fatalf("message %d of the beginning has not arrived after two passes", i)
			}
		}
	})
}

// A transaction that is open when the pass begins is not waited for, whatever its numbers; one that has committed since the
// last pass comes, though its number is lower than what went out.
func TestAPassTakesWhatWasCommittedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		late, open := s.db.Begin(), s.db.Begin()
		w := memstore.NewWriter(memstore.WriterConfig{})
		for _, tx := range []*memstore.Tx{late, open} {
			if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "Made", Key: "k", Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		s.write("t", "k", 1)
		s.passes(s.config(), time.Second)
		if n := s.broker.Len(); n != 1 {
			t.Errorf("%d arrived while both are open, want 1", n)
		}
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		s.passes(s.config(), time.Second)
		if n := s.broker.Len(); n != 2 {
			t.Errorf("%d arrived after the commit, want 2", n)
		}
		if err := open.Rollback(); err != nil {
			t.Fatal(err)
		}
	})
}

// Beside a relay that lives, a pass waits for its next heartbeat at most, and nothing is published twice.
func TestAPassBesideALiveRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		stop := s.run(s.config())
		wait(10 * time.Second)
		end := s.writeOn(time.Millisecond, "a", "b", "c", "d", "")
		s.passes(s.config(), 4*time.Second)
		wait(time.Second)
		end()
		wait(time.Second)
		stop()
		if n := s.broker.Len(); n != len(s.sends.all()) {
			t.Errorf("%d were sent for %d messages", len(s.sends.all()), n)
		}
		s.wantLeft(0, 0)
	})
}

// Partitions of a relay that died are waited for, and done.
func TestAPassWaitsForTheLeaseOfADeadRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		var log logBuffer
		c := s.config()
		dead, err := s.db.Open(nil).Join(t.Context(), store.Relay{ID: outbox.NewID(), Name: "dead", Lease: 15 * time.Second, Heartbeat: time.Second}, store.Sink{Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if lease, err := dead.Renew(t.Context(), true); err != nil || len(lease.Owned) != 8 {
			t.Fatalf("%+v, %v", lease, err)
		}
		s.write("t", "a", 1, 1, 1)
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		took, err := s.once(c)
		if err != nil || took < 14*time.Second || took > 18*time.Second {
			t.Errorf("the pass took %v, want the 15 s of the lease: %v", took, err)
		}
		if n := s.broker.Len(); n != 3 {
			t.Errorf("%d arrived, want 3", n)
		}
		for _, words := range []string{"waiting for partitions whose relay may have died", "one pass is done", "published=3", "of_other_relays=0"} {
			if !strings.Contains(log.String(), words) {
				t.Errorf("the log does not say %q:\n%s", words, log.String())
			}
		}
	})
}

// What waits for its next try is left; once it is due it is tried once, and what waits behind it goes with it.
func TestAPassTriesWhatIsDueOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Sinks[0].Retry = core.Retry{First: time.Minute, Fixed: true}
		s.fail(membroker.Fault{Outcome: broker.Retry}, "")
		s.write("t", "a", 1, 1, 1)
		for i, sent := range []int{1, 1, 2, 2, 5} {
			if i%2 == 0 && i > 0 {
				wait(time.Minute)
			}
			if i == 4 {
				s.broker.SetFaults()
			}
			s.passes(c, time.Second)
			if n := len(s.sends.all()); n != sent {
				t.Errorf("pass %d: %d tries so far, want %d", i, n, sent)
			}
		}
		s.wantLeft(0, 0)
	})
}

// A broker that takes nothing ends the pass over its sink, and no other; no message pays for it.
func TestAPassGivesUpOnABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for what, away := range map[string]func(*membroker.Broker){
			"away":   func(b *membroker.Broker) { b.SetUnavailable(true) },
			"silent": func(b *membroker.Broker) { b.SetFaults(membroker.Every(1, membroker.Fault{Stall: true})) },
			"busy":   func(b *membroker.Broker) { b.SetThrottle(time.Hour) },
		} {
			s, brokers := newStage(t), twoBrokers()
			c := s.sinks(brokers)
			away(brokers["a"])
			s.write("a", "k", 1, 1, 1)
			s.write("a", "", 1, 1, 1)
			s.write("b", "k", make([]int, 100)...)
			took, err := s.once(c)
			if outbox.CodeOf(err) != broker.CodeUnavailable || outbox.Hint(err) == "" || took < 40*time.Second || took > 75*time.Second {
				t.Errorf("%s: the pass took %v, want 40 s and perhaps what is in flight, and %s: %v", what, took, broker.CodeUnavailable, err)
			}
			if a, b := brokers["a"].Len(), brokers["b"].Len(); a != 0 || b != 100 {
				t.Errorf("%s: %d and %d arrived", what, a, b)
			}
			brokers["a"].SetUnavailable(false)
			brokers["a"].SetFaults()
			brokers["a"].SetThrottle(0)
			s.passes(c, 2*time.Second)
			if n := brokers["a"].Len(); n != 6 {
				t.Errorf("%s: %d arrived in the pass after it, want 6", what, n)
			}
			if s.dead() != 0 {
				t.Errorf("%s: a message paid for it", what)
			}
			s.wantLeft(0, 0)
		}
	})
}

func TestAPassGivesUpOnADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, op := range []memstore.Op{memstore.OpInfo, memstore.OpJoin, memstore.OpRenew, memstore.OpRead, memstore.OpSettle, memstore.OpHeads} {
			for _, fault := range []memstore.Fault{{Err: errors.New("it is away")}, {Lost: true, Err: errors.New("it is lost")}} {
				s := newStage(t)
				s.write("t", "a", 1, 1, 1)
				s.db.SetFault(func(c memstore.Call) memstore.Fault {
					if c.Op == op {
						return fault
					}
					return memstore.Fault{}
				})
				took, err := s.once(s.config())
				if fault.Lost && (op == memstore.OpInfo || op == memstore.OpJoin || op == memstore.OpSettle) { // what was done is done
					continue
				}
				if outbox.CodeOf(err) != "onward/database-unavailable" || took < 15*time.Second || took > 30*time.Second {
					t.Errorf("%s %+v: the pass took %v, want the 15 s of a lease: %v", op, fault, took, err)
				}
			}
		}
	})
}

func TestAPassThatIsStoppedSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.broker.SetUnavailable(true)
		s.write("t", "a", 1)
		r, err := relay.New(s.config())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := r.RunOnce(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of its context", err)
		}
		s.wantLeft(1, 0)
	})
}

// A name that a live relay has is no reason to wait for ever; that of a dead one is waited for.
func TestAPassDoesNotWaitForTheNameOfALiveRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Name = "cron"
		stop := s.run(c)
		wait(10 * time.Second)
		if took, err := s.once(c); !errors.Is(err, store.ErrNameTaken) || took > 16*time.Second {
			t.Errorf("after %v: %v, want that the name is taken", took, err)
		}
		stop()
		if _, err := s.db.Open(nil).Join(t.Context(), store.Relay{ID: outbox.NewID(), Name: "cron", Lease: 15 * time.Second, Heartbeat: time.Second}, store.Sink{Name: "test"}); err != nil {
			t.Fatal(err)
		}
		s.write("t", "a", 1)
		s.passes(c, 20*time.Second)
	})
}

// A relay that does not share is refused where another one serves the sink, and refuses whoever comes, at once; when it has
// died its lease has to end first.
func TestARelayThatDoesNotShareIsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		shares, alone := s.config(), s.config()
		alone.NoLeasing = true
		refused := func(what string, c relay.Config) {
			t.Helper()
			var held *store.SinkHeld
			if took, err := s.once(c); !errors.As(err, &held) || held.Sink != "test" || held.Host == "" || took > time.Second {
				t.Errorf("%s: after %v %v, want that the sink is held", what, took, err)
			}
		}
		stop := s.run(shares)
		wait(time.Second)
		refused("beside one that shares", alone)
		stop()
		stop = s.run(alone)
		wait(time.Second)
		refused("one that shares", shares)
		refused("a second one", alone)
		s.write("t", "a", 1)
		wait(time.Second)
		if n := s.broker.Len(); n != 1 {
			t.Errorf("%d arrived", n)
		}
		stop()
		if _, err := s.db.Open(nil).Join(t.Context(), store.Relay{ID: outbox.NewID(), Name: "dead", Host: "h", Lease: 15 * time.Second, Heartbeat: time.Second, NoLeasing: true}, store.Sink{Name: "test"}); err != nil {
			t.Fatal(err)
		}
		refused("while the lease of a dead one lasts", alone)
		wait(16 * time.Second)
		s.passes(alone, time.Second)
		s.passes(shares, time.Second)
	})
}
