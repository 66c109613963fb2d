package storetest

import (
	"fmt"
	"slices"

	"github.com/onwardhq/onward/store"
)

var late = []spec{
	{"EveryInterleavingOfThreeTransactionsComesOnceAndInOrder", severalWriters(interleavings)},
	{"ALateMessageComesOnceBeforeItsSettle", severalWriters(lateBeforeSettle)},
	{"ALateMessageComesOnceAfterItsSettle", severalWriters(lateAfterSettle)},
	{"ALateMessageComesAfterAGiveBack", severalWriters(lateAfterGiveBack)},
	{"ALateMessageComesAfterATakeOver", severalWriters(lateAfterTakeOver)},
	{"LateMessagesComeFromPartitionsOutsideRoom", severalWriters(lateOutsideRoom)},
	{"MoreLateMessagesThanAPageComeInOrder", severalWriters(latePass)},
	{"MoreLateMessagesThanAPageSurviveACrash", severalWriters(latePassCrash)},
	{"FreshMessagesWaitForMoreLateOnesThanAPage", severalWriters(freshWaitForLatePass)},
	{"ALateMessageThatHasItsOutcomeDoesNotComeAgain", severalWriters(lateOutcomesStand)},
}

// readPolicy says after which events of an interleaving is read.
type readPolicy struct {
	name    string
	reads   func(step int, isCommit bool) bool
	settles func(step int) bool
}

var readPolicies = []readPolicy{
	{"read always", func(int, bool) bool { return true }, func(int) bool { return false }},
	{"read and settle always", func(int, bool) bool { return true }, func(int) bool { return true }},
	{"read after commits", func(_ int, isCommit bool) bool { return isCommit }, func(step int) bool { return step%2 == 0 }},
	{"read in the end", func(int, bool) bool { return false }, func(int) bool { return false }},
}

// interleavings runs three transactions of one key, each with a write and a commit, or a rollback, in every order.
func interleavings(s *suite) {
	r := s.alone()
	for n, order := range interleave(3) {
		s.interleaving(r, fmt.Sprintf("key-%d", n), order, -1, readPolicies[n%len(readPolicies)])
		s.interleaving(r, fmt.Sprintf("more-%d", n), order, -1, readPolicies[(n+1)%len(readPolicies)])
		s.interleaving(r, fmt.Sprintf("less-%d", n), order, n%3, readPolicies[(n/3)%len(readPolicies)])
	}
}

// interleave returns every order of the events 0, 0, 1, 1, ... n-1, n-1: the first of each is a write, the second its commit.
func interleave(n int) (orders [][]int) {
	seen := make([]int, n)
	order := make([]int, 0, 2*n)
	var next func()
	next = func() {
		if len(order) == 2*n {
			orders = append(orders, slices.Clone(order))
			return
		}
		for tx := range n {
			if seen[tx] == 2 {
				continue
			}
			seen[tx]++
			order = append(order, tx)
			next()
			order = order[:len(order)-1]
			seen[tx]--
		}
	}
	next()
	return orders
}

func (s *suite) interleaving(r *relay, key string, order []int, rollsBack int, p readPolicy) {
	s.Helper()
	l := newLedger()
	read := func() {
		for _, t := range r.drain() {
			l.handOver(t.name())
		}
	}
	txs := map[int]Tx{}
	for step, i := range order {
		a, b := fmt.Sprintf("%s/%d-first", key, i), fmt.Sprintf("%s/%d-second", key, i)
		isCommit := txs[i] != nil
		switch {
		case !isCommit:
			txs[i] = s.begin()
			l.write(i, key, a, b)
			s.write(txs[i], s.message(a, key), s.message(b, key))
		case i == rollsBack:
			s.ok(txs[i].Rollback(s.ctx), "rollback")
		default:
			s.commit(txs[i])
			l.commit(a, b)
		}
		if p.reads(step, isCommit) {
			read()
		}
		if p.settles(step) {
			r.settleAll()
		}
	}
	read()
	r.settleAll()
	for _, fault := range l.faults(nil) {
		s.Errorf("order %v, rollback of %d, %s: %s", order, rollsBack, p.name, fault)
	}
}

// writeLate opens a transaction that writes "late", commits one that writes "early" after it, and returns the open one.
func (s *suite) writeLate(key string) Tx {
	s.Helper()
	tx := s.begin()
	s.write(tx, s.message("late", key))
	s.sendNamed(key, "early")
	return tx
}

func lateBeforeSettle(s *suite) {
	r := s.alone()
	tx := s.writeLate("k")
	s.want("first", names(r.drain()), []string{"early"})
	s.commit(tx)
	s.sendNamed("k", "then")
	s.want("second", names(r.drain()), []string{"late", "then"})
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterSettle(s *suite) {
	r := s.alone()
	tx := s.writeLate("k")
	s.want("first", names(r.drain()), []string{"early"})
	r.settleAll()
	s.sendNamed("k", "between")
	s.want("second", names(r.drain()), []string{"between"})
	s.commit(tx)
	s.want("third", names(r.drain()), []string{"late"})
	r.settleAll()
	s.want("at last", names(r.drain()), []string(nil))
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterGiveBack(s *suite) {
	r := s.alone()
	tx := s.writeLate("k")
	r.drain()
	r.settleAll()
	r.giveBack(r.held()...)
	s.commit(tx)
	r.holdAll()
	s.want("after the give-back", names(r.drain()), []string{"late"})
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

func lateAfterTakeOver(s *suite) {
	r := s.join(s.short()).holdAll()
	before, after := s.writeLate("k"), s.writeLate("l")
	r.drain()
	r.settleAll()
	s.commit(before) // while nobody reads
	next := r.successor()
	s.want("committed before the take-over", names(next.drain()), []string{"late"})
	s.commit(after)
	s.want("committed after it", names(next.drain()), []string{"late"})
}

func lateOutsideRoom(s *suite) {
	r := s.alone()
	tx := s.writeLate("k")
	r.drain()
	s.commit(tx)
	s.sendNamed("k", "fresh")
	room := r.room()
	room.Partitions = nil
	s.want("without room", names(r.drainRoom(room)), []string{"late"})
	s.want("with room", names(r.drain()), []string{"fresh"})
}

// pass leaves an open transaction that wrote 60 messages of 3 keys, and another one committed behind it; the relay's
// pages have 8 messages.
func (s *suite) pass(as store.Relay) (*relay, Tx, []string) {
	s.Helper()
	as.Page = s.page(8)
	r := s.join(as).holdAll()
	keys := s.keysTogether(3)
	tx := s.begin()
	for i := range 60 {
		s.write(tx, s.message(fmt.Sprintf("%02d", i), keys[i%3]))
	}
	for _, key := range keys {
		s.sendNamed(key, "early")
	}
	s.want("early ones", len(r.drain()), 3)
	r.settleAll()
	return r, tx, keys
}

func latePass(s *suite) {
	r, tx, keys := s.pass(s.long())
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "then")
	}
	s.wantPass(keys, r.drain())
	r.settleAll()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string(nil))
}

// wantPass wants each of the messages once, in order, and "then" after them.
func (s *suite) wantPass(keys []string, got []taken) {
	s.Helper()
	for i, key := range keys {
		var want []string
		for n := i; n < 60; n += 3 {
			want = append(want, fmt.Sprintf("%02d", n))
		}
		s.want(key, names(ofKey(got, key)), append(want, "then"))
	}
	s.want("messages", len(got), 63)
}

func ofKey(ts []taken, key string) (found []taken) {
	for _, t := range ts {
		if t.Key == key {
			found = append(found, t)
		}
	}
	return found
}

// freshWaitForLatePass: a read asks some partitions for fresh messages, so every partition has late ones and a fresh one.
func freshWaitForLatePass(s *suite) {
	as := s.long()
	as.Page = s.page(8)
	r := s.join(as).holdAll()
	keys := s.keys(min(64, s.partitions))
	tx := s.begin()
	var want []string
	for i := range 2 + 16/len(keys) {
		want = append(want, fmt.Sprintf("late %d", i))
		for _, key := range keys {
			s.write(tx, s.message(want[i], key))
		}
	}
	for _, key := range keys {
		s.sendNamed(key, "early")
	}
	s.want("early ones", len(r.drain()), len(keys))
	r.settleAll()
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "fresh")
	}
	got := r.drain()
	for _, key := range keys {
		s.want(key, names(ofKey(got, key)), append(want, "fresh"))
	}
}

func latePassCrash(s *suite) {
	r, tx, keys := s.pass(s.short())
	s.commit(tx)
	for _, key := range keys {
		s.sendNamed(key, "then")
	}
	var got []taken
	for len(got) < 20 {
		_, ts := r.page(r.room())
		got = append(got, ts...)
	}
	r.settleAll() // whole reads: nothing of them may come again
	next := r.successor()
	next.as.Page = s.page(8)
	s.wantPass(keys, append(got, next.drain()...))
}

// lateOutcomesStand: a store may forget how far it is with a read of which one partition is not settled, and give all of it
// again after a crash. What is parked, dead or discarded has its outcome all the same.
func lateOutcomesStand(s *suite) {
	r := s.join(s.short()).holdAll()
	tx := s.begin()
	order := []string{"parked", "dead", "discarded", "left"}
	keys := s.keysTogether(len(order))
	if s.partitions >= len(order) {
		keys = s.keys(len(order))
	}
	for i, name := range order {
		s.write(tx, s.message(name, keys[i]))
		s.sendNamed(keys[i], "early")
	}
	r.drain()
	r.settleAll()
	s.commit(tx)
	late := map[string]taken{}
	for _, t := range r.drain() {
		late[t.name()] = t
	}
	parked, dead, discarded := late["parked"], late["dead"], late["discarded"]
	r.settle([]taken{parked, dead, discarded}, fromLog(parked, retryIn(0, 1)), fromLog(dead, dies(false, 1)), fromLog(discarded, dies(false, 1)))
	s.ok(s.Admin.Discard(s.ctx, act(discarded.ID)), "discard")
	next := r.successor()
	s.want("after a take-over", names(next.drain()), []string{"left"})
	next.wantHeads("after it", "parked")
}
