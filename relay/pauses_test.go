package relay_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onwardhq/onward/store"
)

// pausing is two relays that share an outbox, and a service that writes to every key all the time.
type pausing struct {
	*stage
	log  strings.Builder
	sent int
}

const pausedKeys = 40

// write writes one message of each key.
func (p *pausing) write(topic string) {
	for i := range pausedKeys {
		p.stage.write(topic, fmt.Sprint("key-", i), 1)
	}
	p.sent += pausedKeys
}

func playPauses(t *testing.T, play func(*pausing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pausing{stage: newStage(t)}
		var stops []func() time.Duration
		for i := range 2 {
			c := p.waking()
			c.Name = fmt.Sprint("relay-", i)
			if i == 0 {
				c.Logger = slog.New(slog.NewTextHandler(&p.log, nil))
			}
			stops = append(stops, p.run(c))
		}
		p.until(func() bool { return p.shared() })
		p.write("orders")
		p.until(p.arrived(p.sent))
		play(p)
		for _, stop := range stops {
			stop()
		}
	})
}

// shared reports whether both relays hold something of the sink, and nothing is free.
func (p *pausing) shared() bool {
	p.Helper()
	parts, err := p.db.Admin().Partitions(p.Context(), "")
	if err != nil {
		p.Fatal(err)
	}
	owners := map[string]bool{}
	for _, part := range parts {
		owners[part.Relay] = true
	}
	return len(owners) == 2 && !owners[""]
}

func (p *pausing) pause(act store.PauseAct) {
	p.Helper()
	act.Sink, act.Actor, act.Reason = "test", "ann", "the shop moves"
	if _, err := p.db.Admin().Pause(p.Context(), act); err != nil {
		p.Fatal(err)
	}
}

func (p *pausing) resume(act store.PauseAct) {
	p.Helper()
	act.Sink = "test"
	if err := p.db.Admin().Resume(p.Context(), act); err != nil {
		p.Fatal(err)
	}
}

func (p *pausing) attempts() (failed int) {
	p.Helper()
	list, err := p.db.Admin().Messages(p.Context(), store.Filter{Attempts: 1})
	if err != nil {
		p.Fatal(err)
	}
	return len(list.Messages)
}

// Both relays stop within a second, publish nothing for as long as the sink is paused, and go on within a second; cursors
// stand still, and nothing is parked.
func TestAPausedSinkIsHeldByAllRelaysWithinASecond(t *testing.T) {
	t.Parallel()
	playPauses(t, func(p *pausing) {
		act := store.PauseAct{Kind: store.PauseSink}
		p.pause(act)
		at := p.after()
		wait(time.Second)
		for range 20 {
			p.write("orders")
			wait(100 * time.Millisecond)
		}
		if n := p.sends.within(at+time.Second, p.after()+1); n != 0 {
			t.Errorf("%d messages were sent later than a second after the pause", n)
		}
		status, err := p.db.Admin().Status(t.Context())
		if err != nil || status.Sinks[0].Backlog != 20*pausedKeys || len(status.Sinks[0].Parked) != 0 {
			t.Errorf("while it is paused: %+v, %v", status.Sinks, err)
		}
		p.resume(act)
		at = p.after()
		if took := p.until(p.arrived(p.sent)) - at; took > time.Second {
			t.Errorf("everything has come %s after the resume, want within a second", took)
		}
		if p.attempts() != 0 || p.dead() != 0 {
			t.Errorf("%d messages failed, %d are dead", p.attempts(), p.dead())
		}
		if said := p.log.String(); !strings.Contains(said, "paused") || !strings.Contains(said, "the shop moves") || !strings.Contains(said, "has ended") {
			t.Errorf("the log says\n%s", said)
		}
		p.wantOrder()
	})
}

// A paused topic, and a paused key, are held by both relays within a second; the others go on, and what was held comes within a
// second of the end, in order.
func TestAPausedTopicAndKeyAreHeldByAllRelaysWithinASecond(t *testing.T) {
	t.Parallel()
	for _, act := range []store.PauseAct{{Kind: store.PauseTopic, Name: "orders.*"}, {Kind: store.PauseKey, Name: "key-7"}} {
		t.Run(string(act.Kind), func(t *testing.T) {
			t.Parallel()
			playPauses(t, func(p *pausing) {
				p.pause(act)
				wait(time.Second)
				before := p.broker.Len()
				p.write("orders.paid")
				p.write("news")
				free := 0 // a message of a paused topic holds its key, whatever comes behind it
				if act.Kind == store.PauseKey {
					free = 2 * (pausedKeys - 1)
				}
				p.stage.write("news", "", 1, 1, 1)
				p.sent += 3
				p.until(p.arrived(before + free + 3))
				wait(5 * time.Second)
				if got := p.broker.Len() - before; got != free+3 {
					t.Errorf("%d messages came while others are paused, want %d", got, free+3)
				}
				p.resume(act)
				at := p.after()
				if took := p.until(p.arrived(p.sent)) - at; took > time.Second {
					t.Errorf("everything has come %s after the resume, want within a second", took)
				}
				p.wantOrder()
				if p.attempts() != 0 {
					t.Errorf("%d messages failed", p.attempts())
				}
			})
		})
	}
}

// A pause that ends by itself needs nobody.
func TestAPauseEndsByItself(t *testing.T) {
	t.Parallel()
	for _, act := range []store.PauseAct{{Kind: store.PauseSink, For: time.Hour}, {Kind: store.PauseTopic, Name: ">", For: time.Hour}} {
		t.Run(string(act.Kind), func(t *testing.T) {
			t.Parallel()
			playPauses(t, func(p *pausing) {
				p.pause(act)
				at := p.after()
				wait(time.Second)
				p.write("orders")
				if took := p.until(p.arrived(p.sent)) - at; took < time.Hour || took > time.Hour+10*time.Second { // until looks more rarely the longer it waits
					t.Errorf("it ended after %s, want an hour", took)
				}
			})
		})
	}
}

// A relay that starts while a sink is paused publishes nothing, and one that stops loses nothing.
func TestRelaysComeAndGoWhileASinkIsPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pausing{stage: newStage(t)}
		stop := p.run(p.config())
		p.until(func() bool { return p.renews.any() })
		p.write("orders")
		p.until(p.arrived(p.sent))
		p.pause(store.PauseAct{Kind: store.PauseSink})
		wait(time.Second)
		p.sends.forget()
		p.write("orders")
		wait(time.Second)
		if took := stop(); took > 5*time.Second {
			t.Errorf("it took %s to stop", took)
		}
		for range 3 {
			stop = p.run(p.config())
			wait(20 * time.Second)
			stop()
		}
		if p.sends.any() {
			t.Errorf("%d messages were sent while the sink was paused", len(p.sends.all()))
		}
		stop = p.run(p.config())
		p.resume(store.PauseAct{Kind: store.PauseSink})
		p.until(p.arrived(p.sent))
		stop()
		p.wantOrder()
	})
}

// wantOrder wants each message once, and those of a key in the order in which they were written.
func (p *pausing) wantOrder() {
	p.Helper()
	last, seen := map[string]int64{}, 0
	for _, m := range p.broker.All() {
		if m.Key != "" && m.Seq <= last[m.Key] {
			p.Errorf("message %d of %s came after message %d", m.Seq, m.Key, last[m.Key])
		}
		last[m.Key] = m.Seq
		seen++
	}
	if seen != p.sent {
		p.Errorf("%d messages came, want %d", seen, p.sent)
	}
}
