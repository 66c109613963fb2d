package relay_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// Each setting, changed alone, changes what the relay does. All of it runs in the time of testing/synctest: a figure is what it
// is, however busy the machine.

func lasts(least, most time.Duration) func(int64) bool { return between(int64(least), int64(most)) }

func is(n int64) func(int64) bool { return between(n, n) }

// setting is one of relay.Config: what play measures without it and with it.
type setting struct {
	name          string
	change        func(*relay.Config)
	play          func(*stage, relay.Config) int64
	before, after func(int64) bool
}

func sink(change func(*relay.Sink)) func(*relay.Config) {
	return func(c *relay.Config) { change(&c.Sinks[0]) }
}

var settings = []setting{
	{
		"Name", func(c *relay.Config) { c.Name = "seven77" },
		func(s *stage, c relay.Config) int64 {
			stop := s.run(c)
			s.until(s.renews.any)
			stop()
			return int64(-strings.Count(s.relay.Name, "seven77"))
		}, is(0), is(-1),
	},
	{"Lease", func(c *relay.Config) { c.Lease, c.Heartbeat = time.Minute, 3*time.Second }, takeOver, lasts(13*time.Second, 16*time.Second), lasts(55*time.Second, 62*time.Second)},
	{
		"Heartbeat", func(c *relay.Config) { c.Heartbeat = time.Second },
		func(s *stage, c relay.Config) int64 { return s.minute(c, func() int { return len(s.renews.all()) }) },
		between[int64](115, 130), between[int64](350, 370),
	},
	{
		"PollMin", func(c *relay.Config) { c.PollMin = 90 * time.Millisecond },
		func(s *stage, c relay.Config) int64 {
			return s.minute(c, func() int { return s.reads.within(0, 50*time.Millisecond) })
		},
		between[int64](4, 7), between[int64](1, 2),
	},
	{
		"PollMax", func(c *relay.Config) { c.PollMax = time.Second },
		func(s *stage, c relay.Config) int64 { return s.minute(c, func() int { return len(s.reads.all()) }) },
		between[int64](595, 620), between[int64](60, 75),
	},
	{
		"Wakeup", func(c *relay.Config) { c.Wakeup = relay.WakeupOff },
		func(s *stage, c relay.Config) int64 {
			c.Store = s.waking().Store
			return s.minute(c, func() int { return len(s.reads.all()) })
		},
		between[int64](60, 80), between[int64](595, 620),
	},
	{
		"ShutdownGrace", func(c *relay.Config) { c.ShutdownGrace = time.Minute },
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Stall: true}, "")
			c.Sinks[0].PublishTimeout = time.Hour
			s.write("t", "", 1)
			stop := s.run(c)
			s.until(s.sends.any)
			return int64(stop())
		},
		lasts(30*time.Second, 31*time.Second), lasts(time.Minute, 61*time.Second),
	},
	{
		"Page", func(c *relay.Config) { c.Page = 7 },
		func(s *stage, c relay.Config) int64 {
			s.writeMany(5000)
			s.runUntil(c, s.arrived(5000))
			return int64(s.page)
		}, is(2048), is(7),
	},
	{
		"PageBytes", func(c *relay.Config) { c.PageBytes = 1000 },
		func(s *stage, c relay.Config) int64 {
			s.write("t", "", 600, 600, 600)
			s.runUntil(c, s.arrived(3))
			return int64(s.page)
		}, is(3), is(1),
	},
	{
		"Retention.Published", func(c *relay.Config) { c.Retention.Published = 20 * time.Second },
		func(s *stage, c relay.Config) int64 {
			s.write("t", "k", 1)
			return s.minute(c, s.inLog)
		}, is(1), is(0),
	},
	{
		"Retention.Published: a day", nil,
		func(s *stage, c relay.Config) int64 {
			s.runUntil(c, s.retains.any)
			return int64(s.retention.Published)
		}, lasts(24*time.Hour, 24*time.Hour), nil,
	},
	{
		"Retention.Published: at once", func(c *relay.Config) { c.Retention.Published = relay.AtOnce },
		func(s *stage, c relay.Config) int64 {
			s.write("t", "k", 1)
			return s.minute(c, s.inLog)
		}, is(1), is(0),
	},
	{
		"Retention.Dead", func(c *relay.Config) { c.Retention.Dead = time.Minute },
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Outcome: broker.Rejected}, "")
			s.write("t", "k", 1)
			stop := s.run(c)
			wait(3 * time.Minute)
			stop()
			return int64(s.dead())
		}, is(1), is(0),
	},
	{
		"Sink.OnDead", sink(func(k *relay.Sink) { k.OnDead = "skip" }),
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Outcome: broker.Rejected}, "bad")
			s.write("bad", "k", 1)
			s.write("t", "k", 1)
			return s.minute(c, s.broker.Len)
		}, is(0), is(1),
	},
	{
		"Sink.RecordPositions", sink(func(k *relay.Sink) { k.RecordPositions = true }),
		func(s *stage, c relay.Config) int64 {
			ids := s.write("t", "k", 1)
			s.minute(c, s.broker.Len)
			return int64(len(s.db.Position("test", ids[0])))
		}, is(0), is(1),
	},
	{
		"Sink.Window.Messages", sink(func(k *relay.Sink) { k.Window.Messages = 10 }),
		func(s *stage, c relay.Config) int64 { return s.inFlight(c, 1) }, is(999), is(9), // the last place is for a message in front
	},
	{
		"Sink.Window.Bytes", sink(func(k *relay.Sink) { k.Window.Bytes = 5000 }),
		func(s *stage, c relay.Config) int64 { return s.inFlight(c, 1000) }, is(999), is(5),
	},
	{
		"Sink.Settle.Every", sink(func(k *relay.Sink) { k.Settle.Every = time.Second }),
		func(s *stage, c relay.Config) int64 {
			s.write("t", "k", 1)
			s.runUntil(c, s.settles.any)
			return int64(s.settles.all()[0] - s.sends.all()[0])
		}, lasts(20*time.Millisecond, 20*time.Millisecond), lasts(time.Second, time.Second),
	},
	{
		"Sink.Settle.Count", sink(func(k *relay.Sink) { k.Settle.Count = 3 }),
		func(s *stage, c relay.Config) int64 {
			s.write("t", "k", 1, 1, 1, 1)
			s.runUntil(c, s.settles.any)
			return int64(s.settles.all()[0] - s.sends.all()[0])
		}, lasts(20*time.Millisecond, 20*time.Millisecond), lasts(0, 0),
	},
	{
		"Sink.PublishTimeout", sink(func(k *relay.Sink) { k.PublishTimeout = time.Minute }),
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Stall: true}, "")
			s.write("t", "k", 1)
			s.runUntil(c, func() bool { return len(s.sends.all()) > 1 })
			return int64(s.sends.all()[1] - s.sends.all()[0])
		}, lasts(10*time.Second, 11*time.Second), lasts(time.Minute, 61*time.Second),
	},
	{
		"Sink.Retry.Fixed", sink(func(k *relay.Sink) { k.Retry.Fixed = true }), retries,
		lasts(time.Minute, 4*time.Hour), lasts(13*time.Second, 14*time.Second),
	},
	{
		"Sink.Retry.First", sink(func(k *relay.Sink) { k.Retry.Fixed, k.Retry.First = true, time.Minute }), retries,
		lasts(time.Minute, 4*time.Hour), lasts(13*time.Minute, 14*time.Minute),
	},
	{
		"Sink.Retry.Max", sink(func(k *relay.Sink) { k.Retry.Max = time.Second }), retries,
		lasts(time.Minute, 4*time.Hour), lasts(0, 14*time.Second),
	},
	{
		"Sink.Retry.Attempts", sink(func(k *relay.Sink) { k.Retry.Attempts = 3 }),
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Outcome: broker.Retry}, "")
			s.write("t", "k", 1)
			s.runUntil(c, func() bool { return s.dead() > 0 })
			return int64(len(s.sends.all()))
		}, is(10), is(3),
	},
	{
		"Sink.Breaker.Failures", sink(func(k *relay.Sink) { k.Breaker.Failures = 2 }),
		func(s *stage, c relay.Config) int64 {
			s.away(c, time.Second/4)
			return int64(len(s.sends.all()))
		}, is(5), is(2),
	},
	{
		"Sink.Breaker.First", sink(func(k *relay.Sink) { k.Breaker.First = 20 * time.Second }),
		func(s *stage, c relay.Config) int64 {
			s.away(c, time.Minute)
			return int64(s.probes.all()[0] - s.sends.all()[4])
		}, lasts(time.Second/2, time.Second), lasts(10*time.Second, 20*time.Second),
	},
	{
		"Sink.Breaker.Max", sink(func(k *relay.Sink) { k.Breaker.Max = 2 * time.Second }),
		func(s *stage, c relay.Config) int64 {
			s.away(c, 10*time.Minute)
			return int64(len(s.probes.all()))
		}, between[int64](20, 50), between[int64](300, 620),
	},
	{
		"Topic.OnDead", topic(relay.Topic{Match: "bad", OnDead: "skip"}),
		func(s *stage, c relay.Config) int64 {
			s.fail(membroker.Fault{Outcome: broker.Rejected}, "bad")
			s.write("bad", "k", 1)
			s.write("t", "k", 1)
			return s.minute(c, s.broker.Len)
		}, is(0), is(1),
	},
	{"Topic.RequireKey", topic(relay.Topic{Match: "t", RequireKey: true}), twoTopics, is(0), is(1)},
	{"Topic.MaxPayload", topic(relay.Topic{Match: "t", MaxPayload: 10}), twoTopics, is(0), is(1)},
	{"Topic.Match", topic(relay.Topic{Match: ">", MaxPayload: 10}), twoTopics, is(0), is(2)},
	{
		"Version", func(c *relay.Config) { c.Version = "v7" },
		func(s *stage, c relay.Config) int64 {
			s.runUntil(c, s.renews.any)
			return int64(len(s.relay.Version))
		}, is(0), is(2),
	},
	{
		"Logger", nil,
		func(s *stage, c relay.Config) int64 {
			var lines strings.Builder
			c.Logger = slog.New(slog.NewTextHandler(&lines, nil))
			s.runUntil(c, func() bool { return len(s.renews.all()) > 1 })
			return int64(strings.Count(lines.String(), "stopped: everything settled"))
		}, is(1), nil,
	},
	{
		"Observer", nil,
		func(s *stage, c relay.Config) int64 {
			rounds := new(rounds)
			c.Observer = rounds
			s.minute(c, s.broker.Len)
			return int64(*rounds)
		}, between[int64](59, 61), nil,
	},
}

func topic(t relay.Topic) func(*relay.Config) {
	return func(c *relay.Config) { c.Topics = []relay.Topic{t} }
}

type rounds int

func (r *rounds) Round(relay.Round) { *r++ }

// minute runs a relay for a minute and returns a figure.
func (s *stage) minute(c relay.Config, figure func() int) int64 {
	s.Helper()
	stop := s.run(c)
	wait(time.Minute)
	stop()
	return int64(figure())
}

func (s *stage) runUntil(c relay.Config, holds func() bool) {
	s.Helper()
	stop := s.run(c)
	s.until(holds)
	stop()
}

// inLog is how many messages the log has.
func (s *stage) inLog() int {
	s.Helper()
	list, err := s.db.Admin().Messages(s.Context(), store.Filter{})
	if err != nil {
		s.Fatal(err)
	}
	return len(list.Messages)
}

func (s *stage) writeMany(n int) {
	s.Helper()
	s.write("t", "", slices.Repeat([]int{1}, n)...)
}

// inFlight is how many messages of a size are sent to a broker that answers no more.
func (s *stage) inFlight(c relay.Config, size int) int64 {
	s.Helper()
	c.Sinks[0].PublishTimeout, c.ShutdownGrace = time.Hour, time.Second
	stop := s.run(c)
	s.write("t", "", 1)
	s.until(s.arrived(1))
	synctest.Wait()
	s.fail(membroker.Fault{Stall: true}, "")
	s.sends.forget()
	s.write("t", "", slices.Repeat([]int{size}, 3000)...)
	wait(time.Second / 2)
	stop()
	return int64(len(s.sends.all()))
}

// takeOver is how long the messages of a relay that fell silent wait for another one.
func takeOver(s *stage, c relay.Config) int64 {
	silent := s.run(c)
	s.write("t", "k", 1)
	s.until(s.arrived(1))
	first := s.relay.ID
	s.db.SetFault(func(call memstore.Call) memstore.Fault {
		if call.Relay == first {
			return memstore.Fault{Err: errors.New("it is silent")}
		}
		return memstore.Fault{}
	})
	from := s.after()
	s.write("t", "k", 1)
	stop := s.run(c)
	at := s.until(s.arrived(2))
	stop()
	silent()
	return int64(at - from)
}

// retries is how long it takes until a message that always fails is dead, with 14 attempts: 13 waits.
func retries(s *stage, c relay.Config) int64 {
	c.Sinks[0].Retry.Attempts = 14
	s.fail(membroker.Fault{Outcome: broker.Retry}, "")
	s.write("t", "k", 1)
	s.runUntil(c, func() bool { return s.dead() > 0 })
	return int64(s.sends.all()[13] - s.sends.all()[0])
}

// away runs a relay while the broker, after a first message, takes nothing.
func (s *stage) away(c relay.Config, d time.Duration) {
	s.Helper()
	stop := s.run(c)
	s.write("t", "k", 1)
	s.until(s.arrived(1))
	synctest.Wait()
	s.sends.forget()
	s.probes.forget()
	s.broker.SetUnavailable(true)
	s.write("t", "k", 1)
	wait(d)
	stop()
}

// twoTopics is how many of two messages without a key, of two topics, become dead letters.
func twoTopics(s *stage, c relay.Config) int64 {
	s.write("t", "", 100)
	s.write("u", "", 100)
	return s.minute(c, s.dead)
}

func TestEachSettingChangesWhatTheRelayDoes(t *testing.T) {
	t.Parallel()
	for _, set := range settings {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			measure := func(change func(*relay.Config)) (figure int64) {
				synctest.Test(t, func(t *testing.T) {
					s := newStage(t)
					c := s.config()
					if change != nil {
						change(&c)
					}
					figure = set.play(s, c)
				})
				return figure
			}
			if got := measure(nil); !set.before(got) {
				t.Errorf("by default: %d (%v)", got, time.Duration(got))
			}
			if set.change == nil {
				return
			}
			if got := measure(set.change); !set.after(got) {
				t.Errorf("changed: %d (%v)", got, time.Duration(got))
			}
		})
	}
}

// An idle relay polls less and less, and often again when it has found something.
func TestAnIdleRelayPollsLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		stop := s.run(s.config())
		wait(time.Minute)
		s.write("t", "k", 1)
		wait(time.Minute)
		stop()
		if at := s.sends.all()[0]; at > time.Minute+100*time.Millisecond {
			t.Errorf("the message was sent after %v", at-time.Minute)
		}
		for _, from := range []time.Duration{0, time.Minute} {
			early, later := s.reads.within(from, from+200*time.Millisecond), s.reads.within(from+10*time.Second, from+11*time.Second)
			if early < 5 || later != 10 {
				t.Errorf("from %v on: %d polls in a fifth of a second, and %d in a second ten seconds later", from, early, later)
			}
		}
	})
}
