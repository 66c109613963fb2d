package relay_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// sinks is a configuration with a sink for each broker, which takes the topics of its name.
func (s *stage) sinks(brokers map[string]*membroker.Broker) relay.Config {
	c := s.config()
	c.Sinks = nil
	for _, name := range []string{"a", "b"} {
		c.Sinks = append(c.Sinks, relay.Sink{
			Name: name, Publisher: brokers[name].Publisher(), Selection: outbox.Selection{Topics: []outbox.Pattern{outbox.Pattern(name)}},
		})
	}
	return c
}

func twoBrokers() map[string]*membroker.Broker {
	return map[string]*membroker.Broker{"a": membroker.New(membroker.Config{}), "b": membroker.New(membroker.Config{})}
}

// Each sink takes its topics, and the broker of one that takes nothing delays no other.
func TestSinksStandForThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, brokers := newStage(t), twoBrokers()
		c := s.sinks(brokers)
		brokers["a"].SetUnavailable(true)
		stop := s.run(c)
		for range 10 {
			s.write("a", "k", 1)
			s.write("b", "k", 1)
			s.write("c", "k", 1)
		}
		wait(time.Minute)
		if a, b := brokers["a"].Len(), brokers["b"].Len(); a != 0 || b != 10 {
			t.Errorf("while one broker is away: %d and %d arrived", a, b)
		}
		brokers["a"].SetUnavailable(false)
		wait(time.Minute)
		if took := stop(); took > time.Second {
			t.Errorf("it took %v to stop", took)
		}
		if a, b := brokers["a"].Len(), brokers["b"].Len(); a != 10 || b != 10 {
			t.Errorf("in the end %d and %d arrived", a, b)
		}
		status, err := s.db.Admin().Status(t.Context())
		if err != nil || len(status.Sinks) != 2 || status.RelaysLive != 0 || len(status.Unrouted) != 1 || status.Unrouted[0].Messages != 10 {
			t.Errorf("status: %+v, %v", status, err)
		}
		for _, k := range status.Sinks {
			if k.Backlog != 0 || k.PartitionsOwned != 0 || k.Published != 10 {
				t.Errorf("sink %s: %+v", k.Name, k)
			}
		}
	})
}

// Two relays share every sink; one that falls silent loses all of them, and comes back to all of them under a new id.
func TestARelayThatWasReplacedComesBackToAllItsSinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, brokers := newStage(t), twoBrokers()
		first, second := s.sinks(brokers), s.sinks(brokers)
		first.Name, second.Name = "first", "second"
		stopFirst := s.run(first)
		s.until(func() bool { return s.renews.any() })
		silent := s.joined().ID
		stopSecond := s.run(second)
		shares := func(what string, owned, live int) {
			t.Helper()
			status, err := s.db.Admin().Status(t.Context())
			if err != nil || status.RelaysLive != live {
				t.Errorf("%s: %d relays live, want %d (%v)", what, status.RelaysLive, live, err)
			}
			relays, err := s.db.Admin().Relays(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range relays {
				if r.Partitions != owned || len(r.Sinks) != 2 {
					t.Errorf("%s: %s holds %d partitions of %v, want %d of both sinks", what, r.Name, r.Partitions, r.Sinks, owned)
				}
			}
		}
		wait(time.Minute)
		shares("at first", 8, 2)
		s.db.SetFault(func(call memstore.Call) memstore.Fault {
			if call.Relay == silent {
				return memstore.Fault{Err: errors.New("it is silent")}
			}
			return memstore.Fault{}
		})
		wait(time.Minute)
		shares("when one is silent", 16, 1)
		s.db.SetFault(nil)
		s.write("a", "k", 1)
		s.write("b", "k", 1)
		wait(time.Minute)
		shares("when it speaks again", 8, 2)
		if a, b := brokers["a"].Len(), brokers["b"].Len(); a != 1 || b != 1 {
			t.Errorf("%d and %d arrived", a, b)
		}
		stopFirst()
		wait(time.Second)
		shares("when one has left", 16, 1)
		stopSecond()
	})
}

// A disabled sink is registered where it begins, keeps its place, and goes on from there when it is enabled.
func TestADisabledSinkKeepsItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, brokers := newStage(t), twoBrokers()
		s.write("b", "k", 1)
		c := s.sinks(brokers)
		c.Sinks[1].Disabled, c.Sinks[1].Publisher, c.Sinks[1].Start = true, nil, store.Start{Latest: true}
		stop := s.run(c)
		wait(time.Minute)
		s.write("b", "k", 1)
		wait(time.Minute)
		stop()
		status, err := s.db.Admin().Status(t.Context())
		if err != nil || len(status.Sinks) != 2 || status.Sinks[1].Backlog != 1 || status.Sinks[1].PartitionsFree != 8 {
			t.Errorf("while it is disabled: %+v, %v", status.Sinks, err)
		}
		stop = s.run(s.sinks(brokers))
		wait(time.Minute)
		stop()
		if n := brokers["b"].Len(); n != 1 {
			t.Errorf("%d messages arrived, want the one that came after the sink began", n)
		}
	})
}
