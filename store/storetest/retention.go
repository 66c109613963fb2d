package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// What a store.Retainer promises; a store that is none says so.
var retention = []spec{
	{"RetentionRemovesWhatEverySinkHasPassed", retains(passedByAll)},
	{"RetentionLeavesTheLogAloneWithoutASink", retains(noSinkHolds)},
	{"RetentionWaitsForASinkThatNobodyServes", retains(unservedHolds)},
	{"RetentionLeavesWhatANewSinkBeginsWith", retains(newSinksHold)},
	{"RetentionLeavesWhatWasReadAndNotSettled", retains(unsettledStays)},
	{"RetentionLeavesWhatIsCommittedLate", retains(severalWriters(lateStays))},
	{"RetentionLeavesWhatALatePassHasNotReached", retains(severalWriters(latePassStays))},
	{"RetentionLeavesTheCopiesOfWhatIsParkedOrDead", retains(copiesStay)},
	{"RetentionLeavesOutcomesAsTheyAre", retains(outcomesStay)},
	{"RetentionForgetsWhatGoneMessagesLeft", retains(tracesGo)},
	{"RetentionEndsTheGuardOfAnID", retains(idsAreFree)},
	{"RetentionGoesByWhenAMessageWasWritten", retains(youngStay)},
	{"RetentionRemovesABoundedNumberAtOnce", retains(chunksBounded)},
	{"OneRelayLooksAfterRetention", retains(oldestRetains)},
	{"RetentionRefusesNegativeTimes", retains(negativeRefused)},
	{"DeadLettersAreKeptUntilTheirTime", retains(deadExpire)},
	{"StatusSaysWhatRetentionWaitsFor", retains(holdShown)},
}

func retains(run func(*suite)) func(*suite) {
	return func(s *suite) {
		if _, ok := s.open().(store.Retainer); !ok {
			s.lacks("retention: the store has none")
			return
		}
		run(s)
	}
}

// retainer is retention without memory, as in a process that has just begun.
func (s *suite) retainer() store.Retainer {
	s.Helper()
	return s.open().(store.Retainer) //nolint:forcetypeassert // asked before
}

// sweep lets retention do all that there is to do.
func (s *suite) sweep(with store.Retainer, r store.Retention) (done store.Retained) {
	s.Helper()
	for n := 0; ; n++ {
		did, err := with.Retain(s.ctx, r)
		s.ok(err, "retain")
		done.Messages += did.Messages
		done.Dead += did.Dead
		if !did.More {
			return done
		}
		if n > 10_000 {
			s.Fatal("retain says More without end")
		}
	}
}

// sweepAll lets retention remove all that it may, by nobody's memory.
func (s *suite) sweepAll() store.Retained {
	s.Helper()
	return s.sweep(s.retainer(), store.Retention{})
}

// log lists what is in the log, by name, oldest first.
func (s *suite) log() (found []string) {
	s.Helper()
	list, err := s.Admin.Messages(s.ctx, store.Filter{Limit: 10_000})
	s.ok(err, "list")
	for _, m := range slices.Backward(list.Messages) {
		one, err := s.Admin.Message(s.ctx, m.ID)
		s.ok(err, "show")
		found = append(found, string(one.Payload))
	}
	return found
}

func (s *suite) wantLog(what string, want ...string) {
	s.Helper()
	got := s.log()
	slices.Sort(got)
	slices.Sort(want)
	s.want("the log "+what, got, want)
}

func passedByAll(s *suite) {
	orders := s.alone()
	audit := s.joinOn(s.open(), s.long(), "audit").holdAll()
	receipts := s.sendNamed("k", "a", "b")
	s.want("removed before anything is read", s.sweepAll().Messages, 0)
	orders.drain()
	orders.settleAll()
	s.want("removed before the second sink has it", s.sweepAll().Messages, 0)
	audit.drain()
	audit.settleAll()
	s.sendNamed("k", "c")
	s.want("removed", s.sweepAll().Messages, 2)
	s.wantLog("afterwards", "c")
	s.wantTracked("a removed message", receipts[0], store.StateUnknown)
	_, err := s.Admin.Message(s.ctx, receipts[0].ID)
	s.wantError("show a removed message", err, store.ErrNotFound)
	s.want("the sinks go on", names(append(orders.drain(), audit.drain()...)), []string{"c", "c"})
	orders.settleAll()
	audit.settleAll()
	orders.close()
	s.sweepAll()
	s.wantLog("in the end")
	s.want("after a restart", names(orders.s.alone().drain()), []string(nil))
	s.sendNamed("k", "d")
	s.want("and what comes then", names(audit.drain()), []string{"d"})
}

func noSinkHolds(s *suite) {
	s.sendNamed("k", "a", "b")
	s.want("removed without a sink", s.sweepAll().Messages, 0)
	r := s.alone()
	s.want("read", names(r.drain()), []string{"a", "b"})
	r.settleAll()
	r.close()
	s.sendNamed("k", "c")
	s.ok(s.Admin.RemoveSink(s.ctx, act(outbox.ID{})), "remove the sink")
	s.want("removed once the last sink is gone", s.sweepAll().Messages, 0)
	s.wantLog("without a sink", "a", "b", "c")
}

func unservedHolds(s *suite) {
	s.ok(s.open().Register(s.ctx, store.Sink{Name: "idle", Selection: outbox.Selection{Topics: []outbox.Pattern{"nothing.of.this"}}}), "register")
	r := s.alone()
	s.sendNamed("k", "a", "b")
	r.drain()
	r.settleAll()
	s.want("removed while a sink has no relay", s.sweepAll().Messages, 0)
	s.wantLog("meanwhile", "a", "b")
	s.ok(s.Admin.RemoveSink(s.ctx, store.Act{Sink: "idle", Actor: "ann", Reason: "nobody reads it"}), "remove the sink")
	s.want("removed once it is gone", s.sweepAll().Messages, 2)
	s.wantLog("afterwards")
}

// newSinksHold registers sinks while retention is at it: what is in the log once a sink is registered belongs to it.
func newSinksHold(s *suite) {
	r := s.alone()
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	for range 2 {
		with := s.retainer()
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := with.Retain(ctx, store.Retention{}); err != nil && ctx.Err() == nil {
					s.Errorf("retain: %v", err)
					return
				}
			}
		})
	}
	st := s.open()
	began := s.now()
	for i, start := range []store.Start{{}, {Latest: true}, {Since: began}, {}, {}} {
		var ms []outbox.Message
		for j := range 300 {
			ms = append(ms, s.message(fmt.Sprintf("%d.%03d", i, j), fmt.Sprint("key ", j%7)))
		}
		s.send(ms...)
		r.drain()
		r.settleAll()
		name := fmt.Sprint("new-", i)
		s.ok(st.Register(s.ctx, store.Sink{Name: name, Start: start}), "register")
		want := map[outbox.ID]bool{}
		if !start.Latest {
			list, err := s.Admin.Messages(s.ctx, store.Filter{Limit: 10_000})
			s.ok(err, "list")
			for _, m := range list.Messages {
				want[m.ID] = true
			}
		}
		want[s.sendNamed("k", "then")[0].ID] = true
		r.drain()
		r.settleAll()
		k := s.joinOn(s.open(), s.long(), name).holdAll()
		for _, t := range k.drain() {
			delete(want, t.ID)
		}
		if len(want) > 0 {
			s.Errorf("sink %s, which starts at %+v, has lost %d messages that were in the log when it was registered", name, start, len(want))
		}
		k.settleAll()
		k.close()
		s.ok(s.Admin.RemoveSink(s.ctx, store.Act{Sink: name, Actor: "ann", Reason: "tried"}), "remove the sink")
	}
	cancel()
	wg.Wait()
	s.sweepAll()
	s.wantLog("in the end")
}

func unsettledStays(s *suite) {
	r := s.join(s.short()).holdAll()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	s.want("removed before anything is settled", s.sweepAll().Messages, 0)
	r.settle(ts[:1])
	s.sweepAll()
	if left := s.log(); !slices.Contains(left, "b") || !slices.Contains(left, "c") {
		s.Errorf("the log has %v: b and c were not settled", left)
	}
	next := r.successor()
	if got := names(next.drain()); len(got) < 2 || !slices.Equal(got[len(got)-2:], []string{"b", "c"}) {
		s.Errorf("after a crash came %v, want b and c", got)
	}
	next.settleAll()
	s.sweepAll()
	s.wantLog("in the end")
}

// lateStays: a cursor has passed the number of a message that is committed only now.
func lateStays(s *suite) {
	r := s.alone()
	with := s.retainer()
	first, second := s.writeLate("k"), s.writeLate("l")
	r.drain()
	r.settleAll()
	s.sweep(with, store.Retention{})
	s.wantLog("while they are open")
	s.commit(first)
	s.sweep(with, store.Retention{})
	s.sweepAll()
	s.wantLog("once one is committed", "late")
	s.want("read", names(r.drain()), []string{"late"})
	s.sweepAll()
	s.wantLog("once it is read", "late")
	r.settleAll()
	s.commit(second)
	s.sweepAll()
	s.wantLog("once it is settled, and the other one committed", "late")
	r.close()
	next := s.alone()
	s.sweepAll()
	s.want("the other one, after a restart", names(next.drain()), []string{"late"})
	next.settleAll()
	s.sweepAll()
	s.wantLog("in the end")
}

func latePassStays(s *suite) {
	r, tx, keys := s.pass(s.short())
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "then")
	}
	var got []taken
	for len(got) < 20 {
		_, ts := r.page(r.room())
		got = append(got, ts...)
		s.sweepAll()
	}
	r.settleAll()
	s.sweepAll()
	next := r.successor()
	next.as.Page = s.page(8)
	for {
		page, ts := next.page(next.room())
		got = append(got, ts...)
		s.sweepAll()
		next.settleAll()
		s.sweepAll()
		if !page.More {
			break
		}
	}
	s.wantPass(keys, got)
	s.sweepAll()
	s.wantLog("in the end")
}

// exceptions leaves one message of each outcome: published, parked, dead, discarded.
func (s *suite) exceptions(r *relay) map[string]outbox.Receipt {
	s.Helper()
	receipts := map[string]outbox.Receipt{}
	for _, name := range []string{"published", "parked", "dead", "discarded"} {
		receipts[name] = s.sendNamed("key of "+name, name)[0]
	}
	by := map[string]taken{}
	for _, t := range r.drain() {
		by[t.name()] = t
	}
	r.settle(r.untold, fromLog(by["parked"], retryIn(0, 1)), fromLog(by["dead"], dies(false, 1)), fromLog(by["discarded"], dies(false, 1)))
	s.ok(s.Admin.Discard(s.ctx, act(receipts["discarded"].ID)), "discard")
	return receipts
}

func copiesStay(s *suite) {
	r := s.alone()
	receipts := s.exceptions(r)
	s.want("removed", s.sweepAll().Messages, 4)
	for name, state := range map[string]store.State{
		"published": store.StateUnknown, "parked": store.StateParked, "dead": store.StateDead, "discarded": store.StateDiscarded,
	} {
		got, err := s.Tracker.State(s.ctx, sinkName, receipts[name])
		s.ok(err, "state")
		if got != state && (name != "discarded" || got != store.StateUnknown) {
			s.Errorf("the receipt of what is %s says %s, want %s", name, got, state)
		}
	}
	for _, name := range []string{"parked", "dead"} {
		m, err := s.Admin.Message(s.ctx, receipts[name].ID)
		s.ok(err, "show what is "+name)
		s.want("shown", []any{string(m.Payload), m.States[0].State}, []any{name, name})
		list, err := s.Admin.Messages(s.ctx, store.Filter{State: store.State(name)})
		s.ok(err, "list what is "+name)
		s.want("listed as "+name, len(list.Messages), 1)
	}
	r.wantHeads("after it", "parked")
	s.sendNamed("key of dead", "later")
	r.drain()
	r.settleAll()
	s.sweepAll()
	s.ok(s.Admin.Requeue(s.ctx, act(receipts["dead"].ID), false), "requeue, where the later ones are gone from the log")
	r.wantSomeHeads("after a requeue", "dead", "parked")
}

// outcomesStay: late rows with an outcome, and a sweep at every turn, before and after a crash.
func outcomesStay(s *suite) {
	r := s.join(s.short()).holdAll()
	s.exceptions(r)
	s.sweepAll()
	next := r.successor()
	s.sweepAll()
	s.want("after a take-over", names(next.drain()), []string(nil))
	head := next.wantHeads("after it", "parked")[0]
	next.settle(nil, fromParked(head, dies(true, 2)))
	s.sweepAll()
	s.ok(s.Admin.Requeue(s.ctx, act(head.ID), false), "requeue")
	s.sweepAll()
	head = next.wantHeads("after a requeue", "parked")[0]
	next.settle(nil, fromParked(head, out()))
	s.sweepAll()
	s.want("parked in the end", len(s.sink().Parked), 0)
}

func tracesGo(s *suite) {
	r := s.alone()
	receipts := s.exceptions(r)
	ts := s.sendNamed("p", "positioned")
	got := r.drain()
	v := out()
	v.Position = "stream:7"
	r.settle(got, fromLog(got[0], v))
	s.sweepAll()
	tries := func(id outbox.ID) int {
		list, err := s.Admin.Dead(s.ctx, store.Filter{ID: id})
		s.ok(err, "dead")
		if len(list.Dead) == 0 {
			return -1
		}
		return len(list.Dead[0].Tries)
	}
	s.want("attempts of a dead letter", tries(receipts["dead"].ID), 1)
	if s.Position != nil {
		s.want("position of a message that is gone", s.Position(s.T, sinkName, ts[0].ID), "")
	}
	parked := r.wantHeads("before", "parked")[0]
	r.settle(nil, fromParked(parked, out()))
	s.sweepAll()
	m := s.message("parked again", parked.Key)
	m.ID = parked.ID
	s.send(m)
	again := r.drain()
	r.settle(again, fromLog(again[0], dies(false, 1)))
	s.want("attempts of another message with the id", tries(m.ID), 1)
}

func idsAreFree(s *suite) {
	r := s.alone()
	receipts := s.exceptions(r)
	write := func(id outbox.ID) error {
		tx := s.begin()
		m := s.message("again", "k")
		m.ID = id
		_, err := tx.Write(s.ctx, m)
		return errors.Join(err, tx.Rollback(s.ctx))
	}
	for name, receipt := range receipts {
		s.wantError("write the id of what is "+name, write(receipt.ID), outbox.ErrDuplicateMessage)
	}
	s.sweepAll()
	for _, name := range []string{"published", "discarded"} {
		s.ok(write(receipts[name].ID), "write the id of what was "+name)
	}
	for _, name := range []string{"parked", "dead"} {
		s.wantError("write the id of what is "+name+" still", write(receipts[name].ID), outbox.ErrDuplicateMessage)
	}
	r.settle(nil, fromParked(r.wantHeads("then", "parked")[0], out()))
	s.ok(write(receipts["parked"].ID), "write the id of what was parked")
	s.ok(s.Admin.Discard(s.ctx, act(receipts["dead"].ID)), "discard")
	s.ok(write(receipts["dead"].ID), "write the id of what was dead")
}
