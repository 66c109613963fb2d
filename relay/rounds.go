package relay

import (
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

func (f *feed) publishTimeout() time.Duration {
	if d := f.sink.PublishTimeout; d != 0 {
		return d
	}
	return 10 * time.Second
}

// note says what a person wants to know of an event.
func (t *turn) note(e core.Event) {
	switch e := e.(type) {
	case core.Leased:
		t.noteCall("renew", nil)
		t.noteLease(e.Lease)
	case core.RenewFailed:
		t.noteCall("renew", e.Err)
	case core.GaveBack:
		t.noteCall("give back", e.Err)
		t.noteGaveBack(e)
	case core.ReadDone:
		t.noteCall("read", e.Err)
	case core.Settled:
		t.noteCall("settle", e.Err)
	case core.HeadsDone:
		t.noteCall("heads", e.Err)
		if e.Err == nil {
			t.notePauses(e.Heads.Pauses)
		}
	case core.FollowersDone:
		t.noteCall("followers", e.Err)
	case core.Probed:
		t.noteProbe(e.Err)
	}
}

// noteCall notes how the database answered; what voids the session ends the turn, and is said there.
func (t *turn) noteCall(call string, err error) {
	switch {
	case err == nil:
		t.feed.database.answered(call)
	case !errors.Is(err, store.ErrReload) && !errors.Is(err, store.ErrFenced):
		t.feed.database.failed(call, "waiting for the database", err)
	}
}

func (t *turn) noteGaveBack(e core.GaveBack) {
	if e.Err != nil {
		return
	}
	for _, p := range e.Partitions {
		delete(t.owned, p)
	}
	t.released += len(e.Partitions)
	t.feed.log.Info("gave partitions back", "partitions", len(e.Partitions), "owned", len(t.owned))
}

// noteLease keeps count of partitions that come and go, and says so.
func (t *turn) noteLease(l store.Lease) {
	t.leased = true
	gained := 0
	for _, o := range l.Owned {
		if t.owned[o.Partition] != o.Epoch {
			gained++
		}
	}
	lost := len(t.owned) + gained - len(l.Owned)
	clear(t.owned)
	for _, o := range l.Owned {
		t.owned[o.Partition] = o.Epoch
	}
	t.gained += gained
	if gained > 0 || lost > 0 || l.Relays != t.relays {
		t.feed.log.Info("leases", "owned", len(t.owned), "gained", gained, "relays", l.Relays)
	}
	t.relays = l.Relays
	t.noteUnattended(l)
}

// round tells the observer what happened since the last one.
func (t *turn) round() {
	now := time.Now()
	c, last := t.machine.Counters(), t.reported
	t.noteBroker(now)
	if o := t.feed.relay.config.Observer; o != nil {
		r := Round{
			Sink: t.feed.sink.Name, Read: c.Read - last.Read, Published: c.Published - last.Published,
			Duplicates: c.Duplicates - last.Duplicates, Retried: c.Retried - last.Retried, Parked: c.Parked - last.Parked,
			Dead: c.Dead - last.Dead, Settled: c.Settled - last.Settled, Gained: t.gained, Released: t.released,
			Deleted: int(t.feed.relay.removed.Swap(0)),
			Owned:   len(t.owned), Relays: t.relays, BreakerOpen: t.machine.BreakerOpen(), Took: now.Sub(t.rounded),
			Outcomes: map[broker.Outcome]int{},
		}
		r.InFlight, r.Keys = t.machine.Backlog()
		for o := range c.Outcomes {
			if n := c.Outcomes[o] - last.Outcomes[o]; n > 0 {
				r.Outcomes[broker.Outcome(o)] = n
			}
		}
		t.feed.relay.observed.Lock()
		o.Round(r)
		t.feed.relay.observed.Unlock()
	}
	t.reported, t.rounded, t.gained, t.released = c, now, 0, 0
}

// noteBroker says when publishing goes on, and from time to time that it does not.
func (t *turn) noteBroker(now time.Time) {
	open := t.machine.BreakerOpen()
	switch {
	case !open && t.absent:
		t.feed.log.Info("the broker takes messages again", "after", now.Sub(t.since).Round(time.Millisecond))
	case open && t.absent && now.Sub(t.quiet) > 10*time.Second:
		t.logAbsent("still waiting for the broker: nothing is published, no message pays for it", "for", now.Sub(t.since).Round(time.Second))
		t.quiet = now
	}
	t.absent = open && t.absent
}

// noteProbe says why the broker is not used; who reads the log later is told again, with the cause of then.
func (t *turn) noteProbe(err error) {
	if err == nil {
		return
	}
	t.cause = err
	if t.absent {
		return
	}
	t.absent, t.since, t.quiet = true, time.Now(), time.Now()
	t.logAbsent("waiting for the broker: nothing is published, no message pays for it")
}

func (t *turn) logAbsent(text string, args ...any) {
	args = append(args, "error", t.cause)
	if hint := outbox.Hint(t.cause); hint != "" {
		args = append(args, "hint", hint)
	}
	t.feed.log.Warn(text, args...)
}

// logDead says which messages gave up.
func (t *turn) logDead(s store.Settlement) {
	for _, v := range s.Verdicts {
		if v.To == store.Dead {
			t.feed.log.Warn("dead letter", "id", v.ID.String(), "partition", v.Partition, "seq", v.Seq, "attempts", v.Attempts,
				"code", string(v.Code), "error", v.Error, "holds_its_key", v.Blocks)
		}
	}
}
