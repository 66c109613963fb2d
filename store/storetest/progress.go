package storetest

import (
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var progress = []spec{
	{"MessagesSayWhenTheyWerePublished", published},
	{"MinutesSayHowManyWerePublished", minutesCounted},
}

// published holds what a message says to the times at which it was settled. Stores may keep minutes and no times, but know the
// last settle.
func published(s *suite) {
	begin := s.now().Truncate(time.Minute)
	r := s.alone()
	first, second, waits := s.message("first", "k"), s.message("second", "l"), s.message("waits", "m")
	state := func(m outbox.Message) store.SinkState {
		s.Helper()
		info, err := s.Admin.Message(s.ctx, m.ID)
		s.ok(err, "show")
		if len(info.States) != 1 {
			s.Fatalf("%d states", len(info.States))
		}
		return info.States[0]
	}
	between := func(what string, got store.SinkState, after, by time.Time) {
		s.Helper()
		if got.State != store.StatePublished || got.PublishedAfter == nil || got.PublishedBy == nil {
			s.Errorf("%s: %+v", what, got)
			return
		}
		if got.PublishedAfter.Before(after) || got.PublishedAfter.After(*got.PublishedBy) || got.PublishedBy.After(by) {
			s.Errorf("%s: published after %s and by %s; it was after %s and by %s", what, got.PublishedAfter, got.PublishedBy, after, by)
		}
	}
	s.send(first)
	r.drain()
	r.settleAll()
	settled := s.now()
	between("at once", state(first), begin, settled)
	s.send(second, waits)
	r.settle(ofKey(r.drain(), "l"))
	between("of the second settle", state(second), begin, s.now())
	if got := state(waits); got.State != store.StatePending || got.PublishedAfter != nil || got.PublishedBy != nil {
		s.Errorf("a message that waits: %+v", got)
	}
	r.close()
	between("when the relay has left", state(second), begin, s.now())
}

func minutesCounted(s *suite) {
	admin, has := s.Admin.(store.Progress)
	if !has {
		s.Fatal("the Admin is no store.Progress")
	}
	begin := s.now()
	count := func(since time.Time) (n int64) {
		s.Helper()
		all, err := admin.Minutes(s.ctx, sinkName, since)
		s.ok(err, "minutes")
		for i, m := range all {
			if n += m.Published; m.Published < 1 || !m.At.Equal(m.At.Truncate(time.Minute)) || i > 0 && !m.At.After(all[i-1].At) {
				s.Errorf("minutes: %v", all)
			}
		}
		return n
	}
	rate := func() float64 {
		s.Helper()
		status, err := s.Admin.Status(s.ctx)
		s.ok(err, "status")
		return status.Sinks[0].Rate
	}
	r := s.alone()
	s.want("before anything", []any{count(begin), rate()}, []any{int64(0), 0.0})
	s.sendNamed("k", "1", "2", "3")
	r.drain()
	r.settleAll()
	s.want("after three", count(begin), int64(3))
	three := rate()
	if three < 3.0/360 || three > 3.0/300 { // since five whole minutes ago
		s.Errorf("the rate of three messages is %f", three)
	}
	s.sendNamed("k", "4")
	r.drain()
	r.close() // what is not settled is not published
	r = r.successor().holdAll()
	s.want("after a restart", count(begin), int64(3))
	r.drain()
	r.settleAll()
	s.want("after four", count(begin), int64(4))
	s.want("from tomorrow on", count(begin.Add(24*time.Hour)), int64(0))
	_, err := admin.Minutes(s.ctx, "no-such-sink", begin)
	s.wantError("minutes of no sink", err, store.ErrNotFound)
}
