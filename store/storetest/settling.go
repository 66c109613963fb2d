package storetest

import (
	"fmt"
	"slices"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var settling = []spec{
	{"ARestartRepeatsWhatWasNotSettled", restartRepeats},
	{"SettlingAPrefixKeepsTheRest", settlingPrefix},
	{"SettlingALatePrefixKeepsTheRest", severalWriters(settlingLatePrefix)},
	{"SettlingSomePartitionsKeepsTheOthers", settlingSomePartitions},
	{"ReadsRunAheadOfSettling", readsAhead},
	{"ReadsSettledOutOfOrderLoseNothing", readsOutOfOrder},
	{"ACrashRepeatsOnlyReadsThatWereInFlight", crashRepeats},
	{"AnEmptySettlementIsFine", emptySettlement},
	{"GivingBackKeepsWhatWasNotSettled", givingBackKeeps},
	{"GivingBackRepeatsNothingSettled", givingBackRepeatsNothing},
	{"PublishedIsCounted", publishedCounted},
	{"PositionsAreKept", positionsKept},
	{"ReceiptsAreFollowed", receiptsFollowed},
}

func restartRepeats(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	s.want("first", names(r.drain()), []string{"a", "b", "c"})
	r.close()
	r = r.successor()
	s.want("second", names(r.drain()), []string{"a", "b", "c"})
	r.settleAll()
	r.close()
	s.want("third", names(r.successor().drain()), []string(nil))
}

func settlingPrefix(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c", "d", "e")
	ts := r.drain()
	r.settle(ts[:2])
	s.want("nothing comes again by itself", names(r.drain()), []string(nil))
	r.settle(ts[2:3])
	r.close()
	r = r.successor()
	s.want("after a restart", names(r.drain()), []string{"d", "e"})
	s.sendNamed("k", "f")
	s.want("and then", names(r.drain()), []string{"f"})
}

// settlingLatePrefix settles a read of late and fresh messages one after the other, with a graceful restart each time.
func settlingLatePrefix(s *suite) {
	r := s.alone()
	tx := s.begin()
	s.write(tx, s.message("late 1", "k"), s.message("late 2", "k"), s.message("late 3", "k"))
	s.sendNamed("k", "early")
	s.want("early", names(r.drain()), []string{"early"})
	r.settleAll()
	s.commit(tx)
	s.sendNamed("k", "fresh 1", "fresh 2")
	left := []string{"late 1", "late 2", "late 3", "fresh 1", "fresh 2"}
	for len(left) > 0 {
		ts := r.drain()
		s.want("what is left", names(ts), left)
		if len(ts) == 0 {
			return
		}
		r.settle(ts[:1])
		r.close()
		r = r.successor()
		left = left[1:]
	}
	s.want("in the end", names(r.drain()), []string(nil))
}

func settlingSomePartitions(s *suite) {
	if s.partitions < 4 {
		s.lacks("four partitions")
		return
	}
	r := s.alone()
	keys := s.keys(4)
	for _, key := range keys {
		s.sendNamed(key, key+" a", key+" b", key+" c")
	}
	ts := r.drain()
	var settled []taken
	for i, key := range keys {
		settled = append(settled, ofKey(ts, key)[:i]...)
	}
	r.settle(settled)
	r.close()
	ts = r.successor().drain()
	for i, key := range keys {
		s.want(key, names(ofKey(ts, key)), []string{key + " a", key + " b", key + " c"}[i:])
	}
}

func readsAhead(s *suite) {
	r := s.alone()
	var all []taken
	var want []string
	for i := range 6 {
		name := fmt.Sprint(i)
		s.sendNamed("k", name)
		all = append(all, r.drain()...)
		want = append(want, name)
	}
	s.want("six reads", names(all), want)
	for _, t := range all[:4] {
		r.settle([]taken{t})
	}
	s.sendNamed("k", "6")
	r.drain()
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string{"4", "5", "6"})
}

// readsOutOfOrder settles the second of three reads first: what stands before it is not lost.
func readsOutOfOrder(s *suite) {
	r := s.alone()
	keys := s.keysTogether(3)
	var reads [3][]taken
	for i, key := range keys {
		s.sendNamed(key, fmt.Sprint(i))
		reads[i] = r.drain()
	}
	r.settle(reads[1])
	r.close()
	r = r.successor()
	var got []string
	for _, t := range r.drain() {
		if t.name() != "1" { // it may come again: the cursor of a partition does not pass what stands before it
			got = append(got, t.name())
		}
	}
	s.want("after a restart", got, []string{"0", "2"})
	r.settleAll()
	r.close()
	s.want("in the end", names(r.successor().drain()), []string(nil))
}

// crashRepeats: after a crash nothing of reads that were settled whole comes again, and everything that was not settled.
func crashRepeats(s *suite) {
	r := s.join(s.short()).holdAll()
	keys := s.keys(min(8, s.partitions))
	round := func(n int) []taken {
		for _, key := range keys {
			s.sendNamed(key, fmt.Sprint(n, key))
		}
		return r.drain()
	}
	r.settle(round(0))
	half, ahead := round(1), round(2)
	r.settle(half[:len(half)/2])
	missing := map[string]bool{}
	for _, t := range append(half[len(half)/2:], ahead...) {
		missing[t.name()] = true
	}
	mayCome := map[string]bool{}
	for _, t := range append(half, ahead...) {
		mayCome[t.name()] = true
	}
	got := r.successor().drain()
	for _, t := range got {
		if !mayCome[t.name()] {
			s.Errorf("%s came again: its read was settled whole", t.name())
		}
		delete(missing, t.name())
	}
	s.want("lost", len(missing), 0)
	s.wantOrderOfKeys(got)
}

func emptySettlement(s *suite) {
	r := s.alone()
	for range 2 {
		settled, err := r.session.Settle(s.ctx, store.Settlement{})
		s.ok(err, "settle nothing")
		s.want("gone and fenced", settled.Gone+len(settled.Fenced), 0)
	}
	s.sendNamed("k", "a")
	s.want("read", names(r.drain()), []string{"a"})
	_, err := r.session.Settle(s.ctx, store.Settlement{})
	s.ok(err, "settle nothing")
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string{"a"})
}

func givingBackKeeps(s *suite) {
	r := s.alone()
	keys := s.keys(min(2, s.partitions))
	gives := s.partitionOf(keys[0])
	s.sendNamed(keys[0], "a", "b")
	r.settle(r.drain()[:1])
	r.giveBack(gives)
	s.sendNamed(keys[0], "c")
	if len(keys) > 1 {
		s.sendNamed(keys[1], "other")
		s.want("of what is left", names(r.drain()), []string{"other"})
	}
	s.want("of what was given back", names(r.drain()), []string(nil))
	s.until("hold it again", func() bool { return slices.Contains(r.heldAfterRenewal(), gives) })
	s.want("of what was claimed again", names(r.drain()), []string{"b", "c"})
	epoch := r.epoch(gives)
	r.giveBack(gives)
	s.until("hold it again", func() bool { return slices.Contains(r.heldAfterRenewal(), gives) })
	if r.epoch(gives) <= epoch {
		s.Errorf("epoch %d follows %d", r.epoch(gives), epoch)
	}
}

func (r *relay) heldAfterRenewal() []int {
	r.renew()
	return r.held()
}

// givingBackRepeatsNothing hands partitions to and fro while messages come late, and settles what it read, a prefix of
// each part at a time: a graceful hand-over has no duplicates, whatever made a message late.
func givingBackRepeatsNothing(s *suite) {
	relays := []*relay{s.join(s.long()), s.join(s.long())}
	s.even(relays...)
	l := newLedger()
	keys := s.keys(min(6, s.partitions))
	n := 0
	send := func(tx Tx, txNo int) (all []string) {
		for _, key := range keys {
			n++
			name := fmt.Sprintf("%04d", n)
			l.write(txNo, key, name)
			s.write(tx, s.message(name, key))
			all = append(all, name)
		}
		return all
	}
	for round := range 8 {
		slow, quick := s.begin(), s.begin()
		slowNames := send(slow, 3*round)
		if s.OneWriter {
			s.commit(slow)
			l.commit(slowNames...)
		}
		quickNames := send(quick, 3*round+1)
		s.commit(quick)
		l.commit(quickNames...)
		for _, r := range relays {
			for _, t := range r.drain() {
				l.handOver(t.name())
			}
			r.settleAll()
		}
		if !s.OneWriter {
			s.commit(slow)
			l.commit(slowNames...)
		}
		last := s.begin()
		lastNames := send(last, 3*round+2)
		s.commit(last)
		l.commit(lastNames...)
		for _, r := range relays {
			s.handPrefixBack(r, l, round)
		}
		s.even(relays...)
	}
	for _, r := range relays {
		for _, t := range r.drain() {
			l.handOver(t.name())
		}
	}
	for _, fault := range l.faults(nil) {
		s.Error(fault)
	}
}

// handPrefixBack reads, publishes and settles some of each part, and gives everything back.
func (s *suite) handPrefixBack(r *relay, l *ledger, round int) {
	s.Helper()
	var published []taken
	for _, t := range r.drain() {
		if t.index <= (round+t.Partition)%3 {
			l.handOver(t.name())
			published = append(published, t)
		}
	}
	if len(published) > 0 {
		r.settle(published)
	}
	r.giveBack(r.held()...)
	r.untold = nil
}

func publishedCounted(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	before := s.sink()
	s.want("backlog", before.Backlog, 3)
	s.want("published", before.Published, 0)
	r.settle(ts[:2])
	r.settle(ts[2:])
	s.want("published", s.sink().Published, 3)
	s.want("backlog", s.sink().Backlog, 0)
	settled := s.sink().LastSettle
	if settled.IsZero() {
		s.Error("there is no last settle")
	}
	r.close()
	if left := s.sink().LastSettle; left.Before(settled) {
		s.Errorf("after it left the last settle was at %s, before it at %s", left, settled)
	}
	s.want("published after it left", s.sink().Published, 3)
	r = s.join(s.short()).holdAll()
	s.sendNamed("k", "d")
	r.settle(r.drain())
	r.successor()
	s.want("published after a take-over", s.sink().Published, 4)
}

func positionsKept(s *suite) {
	if s.Position == nil {
		s.lacks("a look at positions")
		return
	}
	r := s.alone()
	receipts := s.sendNamed("k", "a", "b", "c")
	ts := r.drain()
	v := out()
	v.Position = "17"
	r.settle(ts[:1], fromLog(ts[0], v))
	r.settle(ts[1:2])
	r.settle(ts[2:], fromLog(ts[2], retryIn(0, 1)))
	v.Position = "18"
	r.settle(nil, fromParked(r.heads().Due[0], v))
	s.want("positions", []string{
		s.Position(s.T, sinkName, receipts[0].ID), s.Position(s.T, sinkName, receipts[1].ID), s.Position(s.T, sinkName, receipts[2].ID),
	}, []string{"17", "", "18"})
	s.wantState("a", receipts[0], store.StatePublished)
	s.wantState("c", receipts[2], store.StatePublished)
}

func receiptsFollowed(s *suite) {
	r := s.alone()
	tx := s.begin()
	aborted := s.write(tx, s.message("never", "k"))[0]
	state, err := s.Tracker.State(s.ctx, sinkName, aborted)
	s.ok(err, "state")
	if state != store.StatePending && (aborted.Tx != 0 || s.OneWriter) {
		s.Errorf("in an open transaction: %s, want pending", state)
	}
	s.ok(tx.Rollback(s.ctx), "rollback")
	state, err = s.Tracker.State(s.ctx, sinkName, aborted)
	s.ok(err, "state")
	if want := store.StateRolledBack; state != want && (aborted.Tx != 0 || s.OneWriter) {
		s.Errorf("rolled back: %s, want %s", state, want)
	}
	receipts := s.sendNamed("k", "published", "parked", "dead", "discarded", "pending")
	for _, receipt := range receipts {
		s.wantState("a committed message", receipt, store.StatePending)
	}
	ts := r.drain()
	s.wantState("a message that was read", receipts[0], store.StatePending)
	r.settle(ts[:4], fromLog(ts[1], retryIn(0, 1)), fromLog(ts[2], dies(false, 1)), fromLog(ts[3], dies(false, 1)))
	s.ok(s.Admin.Discard(s.ctx, act(ts[3].ID)), "discard")
	for i, want := range []store.State{store.StatePublished, store.StateParked, store.StateDead, store.StateDiscarded, store.StatePending} {
		s.wantState(ts[i].name(), receipts[i], want)
	}
	r.settle(ts[4:])
	s.wantState("the last one", receipts[4], store.StatePublished)
	_, err = s.Tracker.State(s.ctx, "no-such-sink", receipts[0])
	s.wantError("state in no sink", err, store.ErrNotFound)
	if s.OneWriter { // its number was given to another message
		s.wantTracked("a message that was rolled back, and its number given again", aborted, store.StateRolledBack)
		return
	}
	tx = s.writeLate("late")
	r.drain()
	r.settleAll()
	s.commit(tx)
	list, err := s.Admin.Messages(s.ctx, store.Filter{Sink: sinkName, Key: "late", State: store.StatePending})
	s.ok(err, "messages")
	if len(list.Messages) != 1 {
		s.Fatalf("%d late messages are pending, want 1: its number was passed, but not by a snapshot that sees it", len(list.Messages))
	}
	s.wantState("the late one", outbox.Receipt{ID: list.Messages[0].ID, Partition: list.Messages[0].Partition, Seq: list.Messages[0].Seq, Tx: list.Messages[0].Tx}, store.StatePending)
	r.drain()
	r.settleAll()
	s.wantState("the late one", outbox.Receipt{ID: list.Messages[0].ID, Partition: list.Messages[0].Partition, Seq: list.Messages[0].Seq, Tx: list.Messages[0].Tx}, store.StatePublished)
}
