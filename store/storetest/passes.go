package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// passes is what a relay asks that makes one pass, or that does not share.
var passes = []spec{
	{"ASinkThatIsNotSharedHasOneRelay", notShared},
	{"AnExpiredRelayThatDidNotShareIsTakenOver", notSharedExpired},
	{"NotSharingIsForEachSinkOfTheRelay", notSharedEach},
	{"PartitionsAreUnattendedUntilTheirRelayRenews", unattended},
	{"APageSaysWhatIsPastTheMark", pastTheMark},
	{"TheMarkIsPastInASinkThatTakesLittle", pastWhatIsLeft},
	{"ALateMessageOfBeforeIsGivenBeforeItsPartitionIsPast", severalWriters(pastWhatIsLate)},
	{"HeadsSayForHowLongTheyAreDue", headsOverdue},
}

func (s *suite) wantHeld(what string, as store.Relay, by *relay) {
	s.Helper()
	_, err := s.open().Join(s.ctx, as, store.Sink{Name: sinkName})
	s.wantError(what, err, store.ErrSinkHeld)
	var held *store.SinkHeld
	if !errors.As(err, &held) || held.Sink != sinkName || held.Name != by.as.Name || held.Host != by.as.Host || held.PID != by.as.PID || held.Until <= 0 || held.Until > by.as.Lease {
		s.Errorf("%s: got %+v, want a SinkHeld that names %s", what, err, by.as.Name)
	}
}

func notShared(s *suite) {
	shares, alone, other := s.long(), s.long(), s.long()
	alone.NoLeasing, other.NoLeasing = true, true
	first := s.join(shares)
	s.wantHeld("one that does not share beside one that does", alone, first)
	first.close()
	only := s.join(alone).holdAll()
	s.wantHeld("one that shares beside one that does not", shares, only)
	s.wantHeld("two that do not share", other, only)
	all, err := s.Admin.Relays(s.ctx)
	s.ok(err, "relays")
	s.want("relays that are registered", len(all), 1)
	s.want("partitions of the only one", len(only.renew().Owned), s.partitions)
	only.close()
	s.join(shares).holdAll()
}

func notSharedExpired(s *suite) {
	as := s.short()
	as.NoLeasing = true
	dead := s.join(as).holdAll()
	s.sendNamed("k", "a")
	dead.drain()
	next := s.long()
	st := s.open()
	var session store.Session
	s.until("the lease is over", func() bool {
		var err error
		session, err = st.Join(s.ctx, next, store.Sink{Name: sinkName})
		if err != nil {
			s.wantError("join", err, store.ErrSinkHeld)
		}
		return err == nil
	})
	all, err := s.Admin.Relays(s.ctx)
	s.ok(err, "relays")
	s.want("relays that are registered", len(all), 1) // the dead one cannot come back beside the next
	r := (&relay{s: s, store: st, session: session, as: next}).holdAll()
	s.want("what is left", names(r.drain()), []string{"a"})
	s.wantVoid(dead)
	s.ok(session.Close(s.ctx), "close")
}

func notSharedEach(s *suite) {
	as := s.long()
	as.NoLeasing = true
	st := s.open()
	orders := s.joinOn(st, as, sinkName)
	s.joinOn(s.open(), s.long(), "audit").close() // another sink is free
	audit := s.joinOn(st, as, "audit").holdAll()
	_, err := s.open().Join(s.ctx, s.long(), store.Sink{Name: "audit"})
	s.wantError("once it is held", err, store.ErrSinkHeld)
	audit.close()
	s.joinOn(s.open(), s.long(), "audit")
	_, err = st.Join(s.ctx, as, store.Sink{Name: "audit"})
	s.wantError("beside one that shares", err, store.ErrSinkHeld)
	orders.holdAll()
}

func unattended(s *suite) {
	first := s.join(s.long())
	lease, err := first.session.Renew(s.ctx, false)
	s.ok(err, "renew")
	s.want("unattended while all are free", lease.Unattended, s.partitions)
	s.want("unattended once all are held", first.holdAll().lease.Unattended, 0)
	second := s.join(s.long())
	lease, err = second.session.Renew(s.ctx, false)
	s.ok(err, "renew")
	s.want("unattended before the other one renews", lease.Unattended, s.partitions)
	s.until("the other one renews", func() bool {
		first.renew()
		lease, err = second.session.Renew(s.ctx, false)
		s.ok(err, "renew")
		return lease.Unattended == 0
	})
	first.close()
	lease, err = second.session.Renew(s.ctx, false)
	s.ok(err, "renew")
	s.want("unattended once all were given back", lease.Unattended, s.partitions)
	s.want("unattended once they were claimed", second.holdAll().lease.Unattended, 0)
}

// markRoom is room for some messages, for one who makes a pass.
func (r *relay) markRoom(messages int) store.Room {
	room := r.room()
	room.Mark, room.Messages = true, messages
	return room
}

// past lists the partitions that a page says are past the mark, and wants the epochs that are held.
func (r *relay) past(page store.Page) (all []int) {
	r.s.Helper()
	for _, o := range page.Past {
		if o.Epoch != r.epoch(o.Partition) {
			r.s.Errorf("%+v is past the mark, and is held with epoch %d", o, r.epoch(o.Partition))
		}
		all = append(all, o.Partition)
	}
	slices.Sort(all)
	return all
}

// drainToMark reads until all is past, while somebody writes on after each read.
func (r *relay) drainToMark(messages int, writes func(n int)) (all []taken) {
	r.s.Helper()
	mark := int64(-1)
	for n := range 1000 {
		page, ts := r.page(r.markRoom(messages))
		all = append(all, ts...)
		if page.Mark > 0 {
			if mark >= 0 && page.Mark != mark {
				r.s.Errorf("the mark is %d, and was %d", page.Mark, mark)
			}
			mark = page.Mark
		}
		if len(r.past(page)) == r.s.partitions {
			return all
		}
		writes(n)
	}
	r.s.Fatal("some partitions are never past the mark")
	return nil
}

func pastTheMark(s *suite) {
	keys := s.keys(min(4, s.partitions))
	var before []string
	for i := range 40 {
		before = append(before, fmt.Sprintf("m%d", i))
		s.sendNamed(keys[i%len(keys)], before[i])
	}
	r := s.alone()
	page, _ := r.page(r.room())
	s.want("past where nobody asks", len(page.Past), 0)
	r.close()
	r = s.alone()
	all := names(r.drainToMark(s.page(3), func(n int) { s.sendNamed(keys[n%len(keys)], "later") }))
	for _, name := range before {
		if !slices.Contains(all, name) {
			s.Errorf("%s was there before, and was not given", name)
		}
	}
	r.settleAll()
	s.want("past once it is", len(r.past(first(r.page(r.markRoom(s.page(3)))))), s.partitions)
}

func first[A, B any](a A, _ B) A { return a }

func pastWhatIsLeft(s *suite) {
	for range 30 {
		s.sendNamed("k", "left")
	}
	as := s.joinAs(s.open(), s.long(), store.Sink{Name: "none", Selection: outbox.Selection{Topics: []outbox.Pattern{"nothing"}}}).holdAll()
	s.want("what it takes", len(as.drainToMark(s.page(3), func(int) { s.sendNamed("k", "left") })), 0)
}

func pastWhatIsLate(s *suite) {
	r := s.alone()
	early, never := s.begin(), s.begin()
	s.write(early, s.message("early", "k"))
	s.write(never, s.message("never", "k"))
	s.sendNamed("k", "a")
	s.want("the first relay", names(r.drain()), []string{"a"})
	r.settleAll()
	s.commit(early)
	r.close()
	next := s.alone()
	s.want("the next one", names(next.drainToMark(s.page(10), func(int) {})), []string{"early"})
	s.commit(never)
	s.want("what comes when all is past", names(next.drain()), []string{"never"})
}

func headsOverdue(s *suite) {
	r := s.alone()
	s.sendNamed("a", "a")
	s.sendNamed("b", "b")
	ts := r.drain()
	before := s.now()
	r.settle(ts, fromLog(ts[0], retryIn(0, 1)), fromLog(ts[1], retryIn(0, 1)))
	s.until("50 ms are over", func() bool { return s.now().Sub(before) >= 60*time.Millisecond })
	heads := r.heads()
	s.want("heads", len(heads.Due), 2)
	s.want("more", heads.More, false)
	most := s.now().Sub(before)
	for _, h := range heads.Due {
		if h.Overdue < 20*time.Millisecond || h.Overdue > most {
			s.Errorf("%s is due for %v, want 20ms to %v", h.Payload, h.Overdue, most)
		}
	}
	one, err := r.session.Heads(s.ctx, r.held(), 1)
	s.ok(err, "heads")
	s.want("heads of one", len(one.Due), 1)
	s.want("more than one", one.More, true)
}
