package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/onwardhq/onward/store"
)

var parking = []spec{
	{"AParkedMessageIsCopiedWhole", parkedCopiedWhole},
	{"AParkedMessageComesWhenItIsDue", parkedComesWhenDue},
	{"AKeyHasOneHead", keyHasOneHead},
	{"RemovingTheHeadPromotesTheNext", headPromotesNext},
	{"ALateMessageParkedAfterTheHeadTakesItsPlace", severalWriters(lateTakesPlace)},
	{"ParkingAgainKeepsThePlace", parkingAgain},
	{"MessagesWithoutKeyWaitForNobody", keylessWaitAlone},
	{"ABlockingDeadLetterHoldsItsKey", deadHolds},
	{"ASkippedDeadLetterLetsItsKeyGoOn", deadSkips},
	{"ReadsSayWhatIsBlocked", readsSayBlocked},
	{"FollowersComeInOrderAndWithinRoom", followersInOrder},
	{"HeadsAreBounded", headsBounded},
}

func parkedCopiedWhole(s *suite) {
	r := s.alone()
	m := s.message("a", "k")
	m.Headers = map[string]string{"traceparent": "00-1"}
	m.Scope, m.CorrelationID, m.CausationID, m.AggregateType, m.AggregateID, m.EventID = "acme", "cor", "cau", "order", "1", "e"
	s.send(m)
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], retryIn(0, 3)))
	heads := r.heads()
	if len(heads.Due) != 1 {
		s.Fatalf("%d heads, want 1", len(heads.Due))
	}
	p := heads.Due[0]
	s.want("record", fmt.Sprintf("%+v", p.Record), fmt.Sprintf("%+v", ts[0].Record.Record))
	s.want("place", p.Place, store.Place{Order: ts[0].Seq, Seq: ts[0].Seq})
	s.want("reason, attempts, before", []any{p.Reason, p.Attempts, p.Before}, []any{store.ReasonRetry, 3, 0})
	s.want("the log gives it no more", names(r.drain()), []string(nil))
}

// park parks the messages of one read: the first as retry, the others behind.
func (r *relay) park(due time.Duration) []taken {
	r.s.Helper()
	ts := r.drain()
	if len(ts) == 0 {
		r.s.Fatal("there is nothing to park")
	}
	verdicts := []store.Verdict{fromLog(ts[0], retryIn(due, 1))}
	for _, t := range ts[1:] {
		verdicts = append(verdicts, fromLog(t, behind()))
	}
	r.settle(ts, verdicts...)
	return ts
}

func (r *relay) wantHeads(what string, want ...string) []store.Parked {
	r.s.Helper()
	heads := r.heads()
	r.s.want("heads "+what, parkedNames(heads.Due), want)
	return heads.Due
}

func parkedComesWhenDue(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a")
	const wait = 300 * time.Millisecond
	parked := s.now()
	r.park(wait)
	heads := r.heads()
	if s.now().Sub(parked) < wait {
		s.want("heads at once", parkedNames(heads.Due), []string(nil))
		if heads.Next <= 0 || heads.Next > wait {
			s.Errorf("the next one is due in %s, want at most %s", heads.Next, wait)
		}
	}
	s.until("it is due", func() bool { return len(r.heads().Due) == 1 })
	if waited := s.now().Sub(parked); waited < wait {
		s.Errorf("it came after %s, want %s", waited, wait)
	}
	r.wantHeads("asked again", "a")
	r.settle(nil, fromParked(r.heads().Due[0], out()))
	heads = r.heads()
	s.want("heads and next in the end", []any{len(heads.Due), heads.Next}, []any{0, time.Duration(0)})
}

func keyHasOneHead(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	// What failed in a pipeline: several of a key want a retry, and the first of them is not the first in line.
	r.settle(ts, fromLog(ts[2], retryIn(0, 1)), fromLog(ts[0], behind()), fromLog(ts[1], retryIn(0, 1)))
	r.wantHeads("of a key", "a")
	s.sendNamed("k", "d")
	ts = r.drain()
	r.settle(ts, fromLog(ts[0], behind()))
	r.wantHeads("of a key", "a")
	s.want("blocked keys", s.sink().BlockedKeys, 1)
}

func headPromotesNext(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c", "d", "e")
	r.park(0)
	head := r.wantHeads("at first", "a")
	r.settle(nil, fromParked(head[0], out()))
	head = r.wantHeads("when the first is out", "b")
	r.settle(nil, fromParked(head[0], dies(false, 1)))
	head = r.wantHeads("when the second is dead", "c")
	s.ok(s.Admin.Discard(s.ctx, act(head[0].ID)), "discard")
	head = r.wantHeads("when the third is discarded", "d")
	r.settle(nil, fromParked(head[0], out()), fromParked(r.followers("k", head[0].Place)[0], out()))
	r.wantHeads("in the end")
	s.want("followers in the end", len(r.followers("k", store.Place{})), 0)
	s.sendNamed("k", "f")
	s.want("blocked in the end", r.drain()[0].Blocked, false)
}

func lateTakesPlace(s *suite) {
	r := s.alone()
	tx := s.writeLate("k")
	s.sendNamed("k", "behind")
	r.park(time.Hour)
	r.wantHeads("before")
	s.commit(tx)
	ts := r.drain()
	s.want("late one", names(ts), []string{"late"})
	s.want("it is blocked", ts[0].Blocked, true)
	r.settle(ts, fromLog(ts[0], behind()))
	head := r.wantHeads("after", "late")
	s.want("followers", parkedNames(r.followers("k", store.Place{})), []string{"late", "early", "behind"})
	r.settle(nil, fromParked(head[0], out()))
	// Whether the former head keeps its wait or is due at once is the store's choice; it is the only head.
	s.want("followers", parkedNames(r.followers("k", store.Place{})), []string{"early", "behind"})
	if heads := r.heads(); len(heads.Due) > 1 || len(heads.Due) == 0 && heads.Next == 0 {
		s.Errorf("the key has no head, or several: %v, next in %s", parkedNames(heads.Due), heads.Next)
	}
}

func parkingAgain(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b")
	r.park(0)
	head := r.wantHeads("at first", "a")[0]
	r.settle(nil, fromParked(head, retryIn(time.Hour, 2)))
	r.wantHeads("after the second try")
	if next := r.heads().Next; next <= 0 || next > time.Hour {
		s.Errorf("the next one is due in %s, want an hour", next)
	}
	first := r.followers("k", store.Place{})[0]
	s.want("the front of the line", []any{first.Place, first.Reason, first.Attempts}, []any{head.Place, store.ReasonRetry, 2})
	r.settle(nil, fromParked(first, retryIn(0, 3)))
	s.want("attempts", r.wantHeads("after the third try", "a")[0].Attempts, 3)
}

func keylessWaitAlone(s *suite) {
	r := s.alone()
	s.send(s.message("a", ""), s.message("b", ""), s.message("c", ""), s.message("d", ""))
	byName := map[string]taken{}
	for _, t := range r.drain() {
		byName[t.name()] = t
	}
	r.settle(r.untold, fromLog(byName["a"], retryIn(0, 1)), fromLog(byName["b"], retryIn(time.Hour, 1)),
		fromLog(byName["c"], retryIn(0, 1)), fromLog(byName["d"], dies(false, 1)))
	due := map[string]bool{}
	for _, p := range r.heads().Due {
		due[string(p.Payload)] = true
	}
	s.want("due", due, map[string]bool{"a": true, "c": true})
	var again []store.Verdict
	for _, p := range r.heads().Due {
		again = append(again, fromParked(p, out()))
	}
	r.settle(nil, again...)
	r.wantHeads("in the end")
	s.want("parked", s.sink().Parked[store.ReasonRetry], 1)
	for range 20 {
		s.send(s.message("e", ""))
	}
	for _, t := range r.drain() {
		s.want("a message without a key is blocked", t.Blocked, false)
	}
	s.ok(s.Admin.Requeue(s.ctx, act(byName["d"].ID), false), "requeue")
	r.wantHeads("after a requeue", "d")
}

func deadHolds(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	r.settle(ts, fromLog(ts[0], dies(true, 1)), fromLog(ts[1], behind()), fromLog(ts[2], behind()))
	r.wantHeads("behind a dead letter")
	s.want("next", r.heads().Next, time.Duration(0))
	s.want("followers of a blocked key", len(r.followers("k", store.Place{})), 0)
	s.sendNamed("k", "d")
	d := r.drain()
	s.want("the next one is blocked", d[0].Blocked, true)
	r.settle(d, fromLog(d[0], behind()))
	r.wantHeads("behind a dead letter")
	s.want("blocked keys", s.sink().BlockedKeys, 1)
	s.ok(s.Admin.Discard(s.ctx, act(ts[0].ID)), "discard")
	head := r.wantHeads("after a discard", "b")[0]
	r.settle(nil, fromParked(head, dies(true, 1)))
	r.wantHeads("behind a parked one that died")
	s.ok(s.Admin.Requeue(s.ctx, act(ts[1].ID), false), "requeue")
	r.wantHeads("after a requeue", "b")
}

func deadSkips(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b")
	ts := r.drain()
	r.settle(ts[:1], fromLog(ts[0], dies(false, 1)))
	r.settle(ts[1:])
	s.sendNamed("k", "c")
	s.want("blocked", r.drain()[0].Blocked, false)
	r.settleAll()
	s.sendNamed("k", "d", "e")
	r.park(0)
	r.settle(nil, fromParked(r.heads().Due[0], dies(false, 1)))
	r.wantHeads("when the head is dead", "e")
}

func readsSayBlocked(s *suite) {
	r := s.alone()
	next := func(what, key string, want bool) taken {
		s.Helper()
		s.sendNamed(key, what)
		ts := r.drain()
		if len(ts) != 1 {
			s.Fatalf("%s: %d messages, want 1", what, len(ts))
		}
		s.want("blocked: "+what, ts[0].Blocked, want)
		return ts[0]
	}
	keys := s.keysTogether(2)
	k, other := keys[0], keys[1]
	a := next("nothing is parked", k, false)
	r.settle([]taken{a}, fromLog(a, retryIn(time.Hour, 1)))
	b := next("one is parked", k, true)
	next("of another key of the partition", other, false)
	r.settleAllBut(b)
	r.settle([]taken{b}, fromLog(b, behind()))
	s.ok(s.Admin.Discard(s.ctx, act(a.ID)), "discard")
	c := next("one is parked behind nothing", k, true)
	r.settle([]taken{c}, fromParked(r.followers(k, store.Place{})[0], dies(true, 1)), fromLog(c, behind()))
	d := next("a dead letter blocks", k, true)
	s.ok(s.Admin.Discard(s.ctx, act(b.ID)), "discard")
	r.settle([]taken{d}, fromParked(r.heads().Due[0], out()))
	e := next("all went out", k, false)
	r.settle([]taken{e}, fromLog(e, dies(false, 1)))
	r.settleAllBut(next("a dead letter that does not block", k, false))
	g := next("of another key in the end", other, false)
	r.settle([]taken{g}, fromLog(g, dies(true, 1)))
	next("a dead letter blocks, and nothing is parked", other, true)
}

// settleAllBut settles everything that was handed over before a message.
func (r *relay) settleAllBut(last taken) {
	r.s.Helper()
	var ts []taken
	for _, t := range r.untold {
		if t.ID != last.ID {
			ts = append(ts, t)
		}
	}
	if len(ts) > 0 {
		r.settle(ts)
	}
}

func followersInOrder(s *suite) {
	r := s.alone()
	var want []string
	for i := range 10 {
		m := s.message(fmt.Sprintf("%02d", i), "k")
		m.Payload = append(m.Payload, strings.Repeat(" ", 98)...)
		want = append(want, string(m.Payload))
		s.send(m, s.message("x", "other"))
	}
	ts := r.drain()
	verdicts := []store.Verdict{}
	for i, t := range ofKey(ts, "k") {
		if i == 0 {
			verdicts = append(verdicts, fromLog(t, retryIn(0, 1)))
		} else {
			verdicts = append(verdicts, fromLog(t, behind()))
		}
	}
	r.settle(ts, verdicts...)
	all := r.followers("k", store.Place{})
	s.want("from the front", parkedNames(all), want)
	s.want("after the fourth", parkedNames(r.followers("k", all[3].Place)), want[4:])
	s.want("after the last", len(r.followers("k", all[9].Place)), 0)
	s.want("of another key", len(r.followers("other", store.Place{})), 0)
	few, err := r.session.Followers(s.ctx, r.key("k"), store.Place{}, store.Room{Messages: 3, Bytes: 16 << 20})
	s.ok(err, "followers")
	s.want("three", parkedNames(few), want[:3])
	few, err = r.session.Followers(s.ctx, r.key("k"), store.Place{}, store.Room{Messages: 10, Bytes: 250})
	s.ok(err, "followers")
	s.want("250 bytes", parkedNames(few), want[:2])
	few, err = r.session.Followers(s.ctx, r.key("k"), store.Place{}, store.Room{Messages: 10, Bytes: 1})
	s.ok(err, "followers")
	s.want("one byte", parkedNames(few), want[:1])
}

func headsBounded(s *suite) {
	r := s.alone()
	for i := range 9 {
		s.sendNamed(fmt.Sprintf("key-%d", i), fmt.Sprint(i))
		ts := r.drain()
		r.settle(ts, fromLog(ts[0], retryIn(0, 1)))
	}
	heads, err := r.session.Heads(s.ctx, r.held(), 4)
	s.ok(err, "heads")
	s.want("at most four, the longest due first", parkedNames(heads.Due[:1]), []string{"0"})
	s.want("heads", len(heads.Due), 4)
	heads, err = r.session.Heads(s.ctx, nil, 100)
	s.ok(err, "heads")
	s.want("heads of no partition", len(heads.Due), 0)
	p := s.partitionOf("key-0")
	heads, err = r.session.Heads(s.ctx, []int{p}, 100)
	s.ok(err, "heads")
	for _, h := range heads.Due {
		s.want("partition of a head", h.Partition, p)
	}
	if len(heads.Due) == 0 {
		s.Error("no head of the partition of the first key")
	}
}
