package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// What retention does when, how much at once, and who does it.

func youngStay(s *suite) {
	const age = 400 * time.Millisecond
	r := s.alone()
	with := s.retainer()
	written := s.now()
	s.sendNamed("k", "old")
	r.drain()
	r.settleAll()
	s.want("removed at once", s.sweep(with, store.Retention{Published: age}).Messages, 0)
	s.want("removed by a long retention", s.sweep(s.retainer(), store.Retention{Published: time.Hour}).Messages, 0)
	var gone time.Time
	s.until("the old message is removed", func() bool {
		s.sweep(with, store.Retention{Published: age})
		gone = s.now()
		return len(s.log()) == 0
	})
	if gone.Before(written.Add(age)) {
		s.Errorf("it was removed after %v, before the %v of its retention", gone.Sub(written), age)
	}
	s.sendNamed("k", "young")
	r.drain()
	r.settleAll()
	s.want("removed of what is young", s.sweep(with, store.Retention{Published: time.Hour}).Messages, 0)
	s.wantLog("then", "young")
}

func chunksBounded(s *suite) {
	n := s.RetainRows + s.RetainRows/2
	r := s.alone()
	for left := n; left > 0; left -= 1000 {
		var ms []outbox.Message
		for i := range min(left, 1000) {
			ms = append(ms, s.message("x", fmt.Sprint(i%5)))
		}
		s.send(ms...)
	}
	r.drain()
	r.settleAll()
	with := s.retainer()
	removed, calls := 0, 0
	for more := true; more; calls++ {
		did, err := with.Retain(s.ctx, store.Retention{})
		s.ok(err, "retain")
		if did.Messages > s.RetainRows {
			s.Errorf("one call removed %d messages", did.Messages)
		}
		removed, more = removed+did.Messages, did.More
	}
	s.want("removed", removed, n)
	if calls < 2 {
		s.Errorf("%d calls removed all of it", calls)
	}
	s.want("backlog", s.sink().Backlog, 0)
}

func oldestRetains(s *suite) {
	a, b := s.join(s.long()), s.join(s.long())
	var ts []taken
	s.until("both hold their shares", func() bool {
		la, lb := a.renew(), b.renew()
		return len(la.Owned)+len(lb.Owned) == s.partitions && la.Surplus == 0 && lb.Surplus == 0
	})
	s.sendNamed("k", "one")
	ts = append(a.drain(), b.drain()...)
	s.want("read", len(ts), 1)
	a.settleAll()
	b.settleAll()
	asks := func(r *relay) int {
		return s.sweep(r.store.(store.Retainer), store.Retention{Relay: r.as.ID}).Messages //nolint:forcetypeassert // asked before
	}
	s.want("removed by the younger relay", asks(b), 0)
	s.want("removed by one that is not registered", s.sweep(s.retainer(), store.Retention{Relay: outbox.NewID()}).Messages, 0)
	s.want("removed by the older one", asks(a), 1)
	s.sendNamed("k", "two")
	s.want("read", len(append(a.drain(), b.drain()...)), 1)
	a.settleAll()
	b.settleAll()
	a.close()
	b.holdAll()
	s.want("removed by the younger one, alone", asks(b), 1)
}

func negativeRefused(s *suite) {
	for _, r := range []store.Retention{{Published: -1}, {Dead: -1}} {
		_, err := s.retainer().Retain(s.ctx, r)
		s.wantError(fmt.Sprintf("%+v", r), err, outbox.ErrConfigInvalid)
	}
}

func deadExpire(s *suite) {
	const age = 400 * time.Millisecond
	r := s.alone()
	receipts := s.sendNamed("k", "dead", "behind")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()))
	with := s.retainer()
	s.want("discarded where they are kept for ever", s.sweep(with, store.Retention{Published: time.Hour}).Dead, 0)
	s.want("discarded before their time", s.sweep(s.retainer(), store.Retention{Published: time.Hour, Dead: time.Hour}).Dead, 0)
	discarded := 0
	s.until("the dead letter is discarded", func() bool {
		discarded += s.sweep(with, store.Retention{Published: time.Hour, Dead: age}).Dead
		return s.sink().Dead == 0
	})
	s.want("discarded", discarded, 1)
	r.wantHeads("afterwards", "behind")
	s.wantState("it", receipts[0], store.StateDiscarded)
	if s.Audit == nil {
		s.lacks("the audit")
		return
	}
	lines := s.Audit(s.T)
	line := lines[len(lines)-1]
	s.want("audited", []any{line.Actor, line.Action, line.Sink, line.ID}, []any{"retention", "discard", sinkName, ts[0].ID})
	if !strings.Contains(line.Reason, "dead") {
		s.Errorf("the reason is %q", line.Reason)
	}
}

func holdShown(s *suite) {
	s.ok(s.open().Register(s.ctx, store.Sink{Name: "idle", Selection: outbox.Selection{Topics: []outbox.Pattern{"nothing.of.this"}}}), "register")
	r := s.alone()
	held := func() map[string]time.Duration {
		status, err := s.Admin.Status(s.ctx)
		s.ok(err, "status")
		by := map[string]time.Duration{}
		for _, k := range status.Sinks {
			if k.RetentionHeld > 0 {
				by[k.Name] = k.RetentionHeld
			}
		}
		return by
	}
	s.sendNamed("k", "a")
	s.want("held while nobody looks after retention", len(held()), 0)
	s.sweep(s.retainer(), store.Retention{Published: time.Hour})
	s.want("held before it is old", len(held()), 0)
	s.sweepAll()
	s.until("both sinks hold it", func() bool { return len(held()) == 2 })
	r.drain()
	r.settleAll()
	s.want("held by what nobody serves", len(held()), 1)
	first := held()["idle"]
	s.until("it grows", func() bool { return held()["idle"] > first })
	s.ok(s.Admin.RemoveSink(s.ctx, store.Act{Sink: "idle", Actor: "ann", Reason: "nobody reads it"}), "remove the sink")
	s.want("held in the end", len(held()), 0)
}
