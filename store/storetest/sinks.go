package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var sinks = []spec{
	{"ASinkTakesItsTopicsOnly", selectionKept},
	{"WhatASinkDoesNotTakeIsPassedOver", passedOver},
	{"LateMessagesAreSelectedToo", severalWriters(selectionOfLate)},
	{"AnotherSelectionCountsFromThenOn", selectionChanged},
	{"ASinkBeginsWhereItIsTold", sinkStarts},
	{"AStartCountsOnce", startCountsOnce},
	{"ASinkIsRegisteredWithoutARelay", sinkRegistered},
	{"StatusSaysWhoServesASinkAndHow", servingListed},
	{"ASinkThatStandsStillEndsTheRelaysLease", standstill},
	{"WhatNoSinkTakesIsCounted", unroutedCounted},
	{"RemovingASinkForgetsIt", sinkRemoved},
	{"RemovingASinkIsRefused", removalRefused},
}

// of writes a message of a topic; its name is the topic's with a number.
func (s *suite) of(topics ...string) (receipts []outbox.Receipt) {
	s.Helper()
	for i, topic := range topics {
		m := s.message(fmt.Sprint(topic, " ", i+1), "key of "+topic)
		m.Topic = topic
		receipts = append(receipts, s.send(m)...)
	}
	return receipts
}

// joinSelecting registers a relay on a sink with a selection, and lets it hold everything.
func (s *suite) joinSelecting(sink string, topics, exclude []outbox.Pattern) *relay {
	s.Helper()
	return s.joinAs(s.open(), s.long(), store.Sink{Name: sink, Selection: outbox.Selection{Topics: topics, Exclude: exclude}}).holdAll()
}

func sorted(ts []taken) []string {
	all := names(ts)
	slices.Sort(all)
	return all
}

func selectionKept(s *suite) {
	topics := []string{"orders", "orders.paid", "orders.paid.eu", "billing.due", "a+b(c)", "audit"}
	receipts := s.of(topics...)
	for sink, c := range map[string]struct {
		topics, exclude []outbox.Pattern
		want            []string
	}{
		"everything": {nil, nil, []string{"a+b(c) 5", "audit 6", "billing.due 4", "orders 1", "orders.paid 2", "orders.paid.eu 3"}},
		"rest":       {[]outbox.Pattern{"orders.>"}, nil, []string{"orders.paid 2", "orders.paid.eu 3"}},
		"word":       {[]outbox.Pattern{"*"}, nil, []string{"a+b(c) 5", "audit 6", "orders 1"}},
		"several":    {[]outbox.Pattern{"*.due", "orders.*"}, nil, []string{"billing.due 4", "orders.paid 2"}},
		"but":        {[]outbox.Pattern{">"}, []outbox.Pattern{"orders.>", "audit"}, []string{"a+b(c) 5", "billing.due 4", "orders 1"}},
		"literal":    {[]outbox.Pattern{"a+b(c)"}, nil, []string{"a+b(c) 5"}},
	} {
		r := s.joinSelecting(sink, c.topics, c.exclude)
		s.want(sink, sorted(r.drain()), c.want)
		r.settleAll()
		m, err := s.Admin.Message(s.ctx, receipts[1].ID)
		s.ok(err, "show")
		takes := slices.Contains(c.want, "orders.paid 2")
		i := slices.IndexFunc(m.States, func(k store.SinkState) bool { return k.Sink == sink })
		s.want(sink+" has a state of what it takes", i >= 0, takes)
		state, err := s.Tracker.State(s.ctx, sink, receipts[1])
		s.ok(err, "state")
		s.want(sink+"'s receipt", state, map[bool]store.State{true: store.StatePublished, false: store.StateUnknown}[takes])
	}
}

// passedOver: what is not taken is neither backlog nor read again, also after a restart.
func passedOver(s *suite) {
	r := s.joinSelecting(sinkName, []outbox.Pattern{"wanted"}, nil)
	for range 20 {
		s.of("other")
	}
	s.of("wanted")
	for range 20 {
		s.of("other")
	}
	s.want("backlog at first", s.sink().Backlog, int64(1))
	s.want("read", names(r.drain()), []string{"wanted 1"})
	r.settleAll()
	s.want("backlog", s.sink().Backlog, int64(0))
	s.want("lag", s.sink().Lag, time.Duration(0))
	s.of("other")
	s.want("backlog of another", s.sink().Backlog, int64(0))
	r.close()
	s.want("after a restart", names(s.joinSelecting(sinkName, []outbox.Pattern{"wanted"}, nil).drain()), []string(nil))
}

func selectionOfLate(s *suite) {
	as := s.long()
	as.Page = s.page(8)
	r := s.joinAs(s.open(), as, store.Sink{Name: sinkName, Selection: outbox.Selection{Topics: []outbox.Pattern{"wanted"}}}).holdAll()
	for _, n := range []int{3, 40} { // a page, and a late pass
		tx := s.begin()
		var want []string
		for i := range n {
			m := s.message(fmt.Sprintf("wanted %02d", i), "k")
			m.Topic = "wanted"
			other := s.message("other", "k")
			other.Topic = "other"
			s.write(tx, other, m, other2(other))
			want = append(want, string(m.Payload))
		}
		s.of("wanted")
		s.want("early", names(r.drain()), []string{"wanted 1"})
		s.commit(tx)
		s.want("late", names(r.drain()), want)
		r.settleAll()
	}
	s.want("backlog", s.sink().Backlog, int64(0))
}

// other2 is the same message with another id.
func other2(m outbox.Message) outbox.Message {
	m.ID = outbox.NewID()
	return m
}

func selectionChanged(s *suite) {
	r := s.joinSelecting(sinkName, []outbox.Pattern{"a"}, nil)
	s.of("a", "b")
	s.want("first", names(r.drain()), []string{"a 1"})
	r.settleAll()
	r.close()
	s.of("a", "b")
	next := s.joinSelecting(sinkName, []outbox.Pattern{"b"}, nil)
	s.want("then", names(next.drain()), []string{"b 2"})
	s.want("shown", s.sink().Topics, []outbox.Pattern{"b"})
}

func sinkStarts(s *suite) {
	open := s.begin()
	if !s.OneWriter {
		s.write(open, s.message("open", "k"))
	}
	s.sendNamed("k", "old")
	old := s.now()
	s.until("time passes", func() bool { return s.now().After(old.Add(2 * time.Millisecond)) })
	middle := s.now()
	s.until("time passes", func() bool { return s.now().After(middle.Add(2 * time.Millisecond)) })
	receipts := s.sendNamed("k", "new")
	begin := func(name string, start store.Start) *relay {
		return s.joinAs(s.open(), s.long(), store.Sink{Name: name, Start: start}).holdAll()
	}
	earliest, latest, since := begin("earliest", store.Start{}), begin("latest", store.Start{Latest: true}), begin("since", store.Start{Since: middle})
	future := begin("future", store.Start{Since: s.now().Add(time.Hour)})
	s.want("earliest", names(earliest.drain()), []string{"old", "new"})
	s.want("latest", names(latest.drain()), []string(nil))
	s.want("since", names(since.drain()), []string{"new"})
	s.want("future", names(future.drain()), []string(nil))
	m, err := s.Admin.Message(s.ctx, receipts[0].ID)
	s.ok(err, "show")
	s.want("sinks that have a state of it", len(m.States), 2)
	if s.OneWriter {
		s.write(open, s.message("open", "k"))
	}
	s.commit(open) // committed after all of them began
	s.sendNamed("k", "then")
	s.want("earliest, then", names(earliest.drain()), []string{"open", "then"})
	s.want("latest, then", names(latest.drain()), []string{"open", "then"})
	s.want("since, then", names(since.drain()), []string{"open", "then"})
	s.want("future, then", names(future.drain()), []string{"open", "then"})
}

func startCountsOnce(s *suite) {
	s.sendNamed("k", "old")
	r := s.joinAs(s.open(), s.long(), store.Sink{Name: sinkName, Start: store.Start{Latest: true}}).holdAll()
	r.close()
	s.sendNamed("k", "new")
	again := s.joinAs(s.open(), s.long(), store.Sink{Name: sinkName, Start: store.Start{Latest: true}}).holdAll()
	s.want("after a restart", names(again.drain()), []string{"new"})
}

func sinkRegistered(s *suite) {
	st := s.open()
	s.sendNamed("k", "old")
	sink := store.Sink{Name: sinkName, Start: store.Start{Latest: true}, Selection: outbox.Selection{Exclude: []outbox.Pattern{"audit"}}}
	s.ok(st.Register(s.ctx, sink), "register")
	s.ok(st.Register(s.ctx, sink), "register again")
	k := s.sink()
	s.want("exclude", k.Exclude, []outbox.Pattern{"audit"})
	s.want("free partitions", k.PartitionsFree, s.partitions)
	s.want("serving", len(k.Serving), 0)
	s.sendNamed("k", "new")
	s.want("backlog", s.sink().Backlog, int64(1))
	s.want("then", names(s.joinAs(st, s.long(), sink).holdAll().drain()), []string{"new"})
}

func servingListed(s *suite) {
	first, second := s.long(), s.long()
	first.Name, second.Name = "a", "b"
	s.joinAs(s.open(), first, store.Sink{Name: sinkName, Settings: "window 10"})
	b := s.open()
	gone := s.joinAs(b, second, store.Sink{Name: sinkName, Settings: "window 20"})
	s.joinAs(b, second, store.Sink{Name: "audit", Settings: "window 30"})
	s.want("serving", s.sink().Serving, []store.Serving{{Relay: "a", Settings: "window 10"}, {Relay: "b", Settings: "window 20"}})
	gone.close()
	s.want("when one has left", s.sink().Serving, []store.Serving{{Relay: "a", Settings: "window 10"}})
}

func unroutedCounted(s *suite) {
	status := func() store.Status {
		status, err := s.Admin.Status(s.ctx)
		s.ok(err, "status")
		return status
	}
	s.of("a", "b", "c", "c")
	s.want("without a sink", len(status().Unrouted), 0)
	s.joinSelecting(sinkName, []outbox.Pattern{"a"}, nil)
	s.joinSelecting("second", []outbox.Pattern{">"}, []outbox.Pattern{"a", "c"})
	s.want("unrouted", status().Unrouted, []store.TopicCount{{Topic: "c", Messages: 2}})
	s.want("of", status().UnroutedOf, int64(4))
	s.joinSelecting("third", nil, nil)
	s.want("when one takes all", len(status().Unrouted), 0)
}

func sinkRemoved(s *suite) {
	r, other := s.alone(), s.joinOn(s.open(), s.long(), "audit").holdAll()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()), fromLog(ts[2], behind()))
	s.want("other sink", names(other.drain()), []string{"a", "b", "c"})
	r.close()
	act := store.Act{Sink: sinkName, Reason: "no longer needed", DryRun: true}
	s.ok(s.Admin.RemoveSink(s.ctx, act), "dry run")
	s.want("dead before", s.sink().Dead, int64(1))
	act.DryRun = false
	s.ok(s.Admin.RemoveSink(s.ctx, act), "remove")
	status, err := s.Admin.Status(s.ctx)
	s.ok(err, "status")
	s.want("sinks left", len(status.Sinks), 1)
	other.settleAll()
	s.want("the other goes on", names(other.drain()), []string(nil))
	s.wantError("again", s.Admin.RemoveSink(s.ctx, act), store.ErrNotFound)
	s.want("a new one of this name begins anew", names(s.alone().drain()), []string{"a", "b", "c"})
}

func removalRefused(s *suite) {
	r := s.join(s.short()).holdAll()
	act := store.Act{Sink: sinkName, Reason: "no longer needed"}
	s.wantError("while it is served", s.Admin.RemoveSink(s.ctx, act), store.ErrStateConflict)
	s.wantError("without a reason", s.Admin.RemoveSink(s.ctx, store.Act{Sink: sinkName}), store.ErrReasonRequired)
	s.wantError("one that does not exist", s.Admin.RemoveSink(s.ctx, store.Act{Sink: "nothing", Reason: "x"}), store.ErrNotFound)
	s.until("its relay's lease is over", func() bool { return s.Admin.RemoveSink(s.ctx, act) == nil })
	s.until("the relay sees that it is over", func() bool {
		_, err := r.session.Renew(s.ctx, true)
		if errors.Is(err, store.ErrReload) {
			r.session.Reset()
		}
		return errors.Is(err, store.ErrFenced)
	})
	s.wantFenced(r)
}

// standstill: whoever counts as live claims and gives back. A relay of which one sink's worker hangs must not, or what that
// one holds would be published by nobody.
func standstill(s *suite) {
	st, as, other := s.open(), s.short(), s.short()
	other.ID, other.Name = outbox.NewID(), "other"
	moves := s.joinAs(st, as, store.Sink{Name: sinkName})
	s.joinAs(st, as, store.Sink{Name: "hangs"}).holdAll()
	heir := s.joinAs(s.open(), other, store.Sink{Name: "hangs"})
	s.until("another relay has what hangs", func() bool {
		_, _ = moves.session.Renew(s.ctx, true) // until it is fenced
		return len(heir.renew().Owned) == s.partitions
	})
}
