package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// deletions adds up what rounds say of retention.
type deletions struct {
	mu  sync.Mutex
	sum int
}

func (d *deletions) Round(r relay.Round) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum += r.Deleted
}

func TestWhatRetentionRemovesIsCountedAndSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log, sum := newStage(t), new(bytes.Buffer), new(deletions)
		c := s.config()
		c.Retention.Published, c.Observer, c.Logger = relay.AtOnce, sum, slog.New(slog.NewTextHandler(log, nil))
		s.writeMany(12_000)
		stop := s.run(c)
		wait(time.Minute)
		stop()
		if sum.sum != 12_000 || s.inLog() != 0 {
			t.Errorf("rounds count %d removed messages, want 12000; %d are left", sum.sum, s.inLog())
		}
		if n := strings.Count(log.String(), "retention removed messages"); n != 1 || !strings.Contains(log.String(), "messages=12000") {
			t.Errorf("it was said %d times: %s", n, log)
		}
	})
}

func TestAnOutageOfRetentionIsAFewLinesOfLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := newStage(t), new(bytes.Buffer)
		c := s.config()
		c.Retention.Published, c.Logger = relay.AtOnce, slog.New(slog.NewTextHandler(log, nil))
		s.db.SetFault(func(call memstore.Call) (f memstore.Fault) {
			if call.Op == memstore.OpRetain {
				f.Err = errors.New("permission denied for table outbox_messages")
			}
			return f
		})
		s.write("t", "k", 1)
		stop := s.run(c)
		wait(35 * time.Second)
		if n := s.broker.Len(); n != 1 {
			t.Errorf("%d messages were published meanwhile, want 1", n)
		}
		s.db.SetFault(nil)
		wait(10 * time.Second)
		stop()
		if n := strings.Count(log.String(), "permission denied"); n < 2 || n > 5 {
			t.Errorf("it was said %d times in 35 seconds: %s", n, log)
		}
		if !strings.Contains(log.String(), "the database answers again") || s.inLog() != 0 {
			t.Errorf("%d messages are left at the end: %s", s.inLog(), log)
		}
	})
}

// slowStore takes its time for each step of retention, and never comes to the end.
type slowStore struct {
	store.Store
	mu      sync.Mutex
	retains int
	at      []outbox.ID
}

func (s *slowStore) Retain(_ context.Context, r store.Retention) (store.Retained, error) {
	s.mu.Lock()
	s.retains++
	s.at = append(s.at, r.Relay)
	s.mu.Unlock()
	wait(100 * time.Millisecond)
	return store.Retained{Messages: 1, More: true}, nil
}

func TestRetentionLeavesHalfOfTheTimeToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		slow := &slowStore{Store: s.db.Open(nil)}
		c.Store = slow
		stop := s.run(c)
		wait(time.Minute)
		stop()
		if slow.retains < 250 || slow.retains > 300 {
			t.Errorf("%d steps of a tenth of a second in a minute, want half of 600", slow.retains)
		}
		if slow.at[0].IsZero() {
			t.Error("nobody says who asks")
		}
	})
}

// A relay that serves one sink of two looks after the log as well, as far as the other sink has got.
func TestARelayOfOneSinkLooksAfterRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, brokers := newStage(t), twoBrokers()
		both := s.sinks(brokers)
		s.write("a", "k", 1)
		s.write("b", "k", 1)
		stop := s.run(both)
		wait(time.Minute)
		stop()
		one := s.sinks(brokers)
		one.Sinks, one.Retention.Published = one.Sinks[:1], relay.AtOnce
		stop = s.run(one)
		wait(time.Minute)
		if n := s.inLog(); n != 0 {
			t.Errorf("%d messages are left that both sinks have", n)
		}
		s.write("a", "k", 1)
		wait(time.Minute)
		stop()
		if n := s.inLog(); n != 1 || brokers["a"].Len() != 2 {
			t.Errorf("%d messages are left that the other sink has not passed, want 1; %d were published", n, brokers["a"].Len())
		}
	})
}

// A disabled sink keeps what it has not taken.
func TestADisabledSinkHoldsRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Retention.Published = relay.AtOnce
		c.Sinks = append(c.Sinks, relay.Sink{Name: "later", Disabled: true})
		s.write("t", "k", 1)
		stop := s.run(c)
		wait(time.Minute)
		stop()
		if n := s.inLog(); n != 1 {
			t.Fatalf("%d messages are left, want the one that the disabled sink has not", n)
		}
		later := membroker.New(membroker.Config{})
		c.Sinks[1].Disabled, c.Sinks[1].Publisher = false, later.Publisher()
		stop = s.run(c)
		wait(time.Minute)
		stop()
		if n := s.inLog(); n != 0 || later.Len() != 1 {
			t.Errorf("%d messages are left once it has %d", n, later.Len())
		}
	})
}

func TestRetentionIsChecked(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*relay.Retention){
		"Retention.Published is -2": func(r *relay.Retention) { r.Published = -2 },
		"Retention.Dead is -1s":     func(r *relay.Retention) { r.Dead = -time.Second },
		"Retention.Dead is 59s":     func(r *relay.Retention) { r.Dead = 59 * time.Second },
	} {
		c := relay.Config{Store: memstore.New(memstore.Config{}).Open(nil), Sinks: []relay.Sink{{Name: "a", Publisher: membroker.New(membroker.Config{}).Publisher()}}}
		if _, err := relay.New(c); err != nil {
			t.Fatal(err)
		}
		change(&c.Retention)
		if _, err := relay.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Where passes are all that ever runs, they look after retention, too.
func TestAPassLooksAfterRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		c := s.config()
		c.Retention.Published = time.Hour
		pass := func() {
			t.Helper()
			r, err := relay.New(c)
			if err == nil {
				err = r.RunOnce(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s.write("t", "k", 1)
		pass()
		if n := s.inLog(); n != 1 {
			t.Errorf("%d messages are left at once, want 1", n)
		}
		wait(2 * time.Hour)
		pass()
		if n := s.inLog(); n != 0 {
			t.Errorf("%d messages are left after two hours", n)
		}
	})
}
