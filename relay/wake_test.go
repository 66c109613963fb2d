package relay_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
)

// lags are how long messages waited, that were written one after the other at an idle relay.
func (s *stage) lags(c relay.Config, after func(*relay.Relay)) (longest time.Duration) {
	s.Helper()
	r, err := relay.New(c)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for i := range 10 {
		wait(10*time.Second + time.Duration(i)*77*time.Millisecond)
		written := s.after()
		s.write("t", "k", 1)
		after(r)
		s.until(s.arrived(i + 1))
		longest = max(longest, s.sends.all()[i]-written)
	}
	cancel()
	if err := <-ended; err != nil {
		s.Error(err)
	}
	return longest
}

// A commit wakes an idle relay, though it polls once a second only.
func TestACommitWakesAnIdleRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.waking()
		if longest := s.lags(c, func(*relay.Relay) {}); longest > time.Millisecond {
			t.Errorf("a message waited %v", longest)
		}
		if polls := s.reads.within(5*time.Second, 10*time.Second); polls < 4 || polls > 6 {
			t.Errorf("five idle seconds have %d polls, want 5", polls)
		}
	})
}

// A relay that sleeps stops at once: nobody waits for a hint.
func TestASleepingRelayStopsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		stop := s.run(s.waking())
		wait(10 * time.Second)
		if took := stop(); took > time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// Wake wakes a relay whose store says nothing of commits, and one that is told to expect nothing of it.
func TestWakeWakesAnIdleRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.PollMax, c.Wakeup = time.Minute, relay.WakeupOff
		if longest := s.lags(c, (*relay.Relay).Wake); longest > time.Millisecond {
			t.Errorf("a message waited %v", longest)
		}
		s = newStage(t)
		c = s.config()
		c.PollMax, c.Wakeup = time.Minute, relay.WakeupOff
		if longest := s.lags(c, func(*relay.Relay) {}); longest < time.Second {
			t.Errorf("nobody called Wake, and no message waited longer than %v: this test shows nothing", longest)
		}
	})
}

// Wake may be called at any time, also of a relay that does not run.
func TestWakeOfARelayThatDoesNotRunDoesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		r, err := relay.New(s.config())
		if err != nil {
			t.Fatal(err)
		}
		r.Wake()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		r.Wake()
	})
}

func TestAnUnknownWakeupIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	c := s.config()
	c.Wakeup = "on"
	if _, err := relay.New(c); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("got %v", err)
	}
}
