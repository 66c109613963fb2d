package core

import (
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
)

// begin notes what there is when a machine is made.
func (w *world) begin() {
	w.mark, w.tried, w.ended, w.before, w.due = w.seq, map[int64]bool{}, nil, nil, nil
	for _, r := range w.rows {
		if r.committed {
			w.before = append(w.before, r)
		}
	}
	for _, line := range w.parked {
		for _, p := range line {
			if p.due = 0; p.hasDue { // times are of the machine's clock here
				w.due = append(w.due, p.row)
			}
		}
	}
}

// past lists the partitions of which nothing up to the mark is left to be read.
func (w *world) past() (all []store.Owned) {
	for p := range worldParts {
		left := !w.held[p]
		for _, r := range w.rows {
			left = left || r.committed && !r.read && r.rec.Partition == p && r.rec.Seq <= w.mark
		}
		if !left {
			all = append(all, store.Owned{Partition: p, Epoch: w.epochs[p]})
		}
	}
	return all
}

// A pass ends by itself, however much is written meanwhile, and through crashes, faults of the broker and hand-overs. By then
// all that was committed before it has its outcome, and all that was due then was tried.
func TestAPassEndsInAnUnreliableWorld(t *testing.T) {
	t.Parallel()
	seeds := 100
	if testing.Short() {
		seeds = 50
	}
	total := map[string]int{}
	for seed := range uint64(seeds) {
		w := newWorld(seed)
		for range 1500 {
			w.turn(4)
		}
		w.once, w.pauses = true, nil
		w.start()
		turns := 0
		for ; turns < 10_000 && w.ended == nil; turns++ {
			w.lasting = turns > 1000 // each crash begins another pass, with more to do; a pass waits until somebody has what it gave back
			if turns%2 == 0 {
				w.write(4) // more than a machine can do
			}
			w.turn(4)
		}
		if w.ended == nil {
			t.Fatalf("seed %d: the pass does not end", seed)
		}
		if w.ended.GaveUp {
			total["gave up"]++
			continue
		}
		total["ended"]++
		for _, r := range w.before {
			if !r.settled {
				w.fault("message %d of key %q was there before, and has no outcome", r.rec.Seq, r.rec.Key)
			}
		}
		for key, line := range w.parked {
			for _, p := range line { // one that is not due any more stands behind one that a person has requeued
				if p.hasDue && p.due == 0 && slices.Contains(w.due, p.row) && !w.tried[p.row.rec.Seq] {
					w.fault("parked message %d of key %q was due, and was not tried", p.row.rec.Seq, key)
				}
			}
		}
		for _, r := range w.due {
			if w.tried[r.rec.Seq] {
				total["due"]++
			}
		}
		if messages, keys := w.m.Backlog(); messages != 0 || keys != 0 {
			w.fault("%d messages and %d keys in memory", messages, keys)
		}
		if len(w.bad) > 0 {
			t.Fatalf("seed %d (pipeline %v), after %d turns: %q", seed, w.pipeline, turns, w.bad[:min(5, len(w.bad))])
		}
		for k, n := range w.stats {
			total[k] += n
		}
	}
	t.Log(total)
	for _, state := range []string{"ended", "due", "crashes", "followers", "given back", "parked retry"} {
		if total[state] == 0 {
			t.Errorf("no run reached %q", state)
		}
	}
}

// pass plays a machine that makes one pass over partition 0.
func pass(t *testing.T, rules Rules) *script {
	t.Helper()
	rules.Once = true
	return play(t, rules, 0)
}

// gives answers the read that is out, and says that the partition is past the mark.
func (s *script) givesLast(mark int64, texts ...string) {
	s.t.Helper()
	s.last = &store.Page{Mark: mark, Past: []store.Owned{{Partition: 0, Epoch: 1}}}
	s.give(texts...)
	s.last = nil
}

func (s *script) wantEnd(gaveUp bool) {
	s.t.Helper()
	if e, ok := s.ended.(Stopped); !ok || e.GaveUp != gaveUp {
		s.t.Fatalf("ended with %+v, want Stopped, gave up: %v", s.ended, gaveUp)
	}
}

func TestAPassOverNothingEndsWithoutTheBroker(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	s.m.breaker.state = breakerOpen
	s.givesLast(0)
	s.heads()
	s.wantEnd(false)
}

// A page may say that there is more for ever: others write.
func TestAPassReadsNothingBehindItsMark(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	if !s.reads[0].Room.Mark {
		t.Error("the read does not ask for the mark")
	}
	s.givesLast(1, "a", "a")
	s.heads()
	if len(s.reads) > 0 {
		t.Error("reads on behind the mark")
	}
	s.answer(1, broker.Accepted)
	s.answer(2, broker.Accepted)
	s.want("settled", s.settle(), "done 2 of read 1")
	s.wantEnd(false)
}

func TestAPassWaitsForPartitionsThatNobodyLooksAfter(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	owned := []store.Owned{{Partition: 0, Epoch: 1}}
	s.step(Leased{Lease: store.Lease{Owned: owned, Unattended: 1}, Until: time.Hour})
	s.givesLast(0)
	s.heads()
	s.after(time.Minute)
	if s.ended != nil {
		t.Fatalf("ended with %+v while a partition has no owner that lives", s.ended)
	}
	s.step(Leased{Lease: store.Lease{Owned: owned}, Until: time.Hour})
	s.wantEnd(false)
}

// What was due before is tried once, with what waits behind it; what comes due later, and what came behind later, stays.
func TestAPassTriesWhatWasDueOnceWithWhatWaitsBehindIt(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	s.after(time.Second)
	s.givesLast(9)
	due, young, failing := parked("a", 3, 1), parked("b", 4, 1), parked("c", 5, 1)
	due.Overdue, young.Overdue, failing.Overdue = time.Minute, time.Second/2, time.Minute
	s.heads(due, young, failing)
	s.want("sent", s.flying(), "a3 c5")
	s.answer(3, broker.Accepted)
	s.answer(5, broker.Retry)
	s.want("settled", s.settle(), "out 3 again; park 5 retry again")
	s.followers(parked("a", 7, 0), parked("a", 12, 0))
	s.answer(7, broker.Accepted)
	s.answer(12, broker.Accepted)
	s.settle()
	s.followers(parked("a", 13, 0))
	again := parked("c", 5, 2)
	again.Overdue = 100 * time.Millisecond
	s.heads(again)
	s.want("sent in the end", s.flying(), "")
	s.wantEnd(false)
}

// A full answer may hide more of what was due.
func TestAPassAsksForHeadsUntilItHasSeenAll(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	s.givesLast(9)
	s.more = true
	s.heads()
	if s.ended != nil {
		t.Fatal("ended, although more was due")
	}
	s.more = false
	s.heads()
	s.wantEnd(false)
}

func TestAPassGivesUpWhenTheBrokerTakesNothing(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{PublishTimeout: 2 * time.Second, Breaker: Breaker{Max: 3 * time.Second}})
	s.givesLast(9, "a", "b")
	s.heads()
	s.answer(1, broker.Accepted)
	s.answer(2, broker.Unavailable)
	for range 4 {
		s.answer(2, broker.Unavailable)
	}
	s.after(4 * time.Second)
	if s.ended != nil {
		t.Fatalf("ended with %+v too early", s.ended)
	}
	s.after(time.Second)
	s.want("settled", s.settle(), "done 1 of read 1")
	s.wantEnd(true)
}

// A sink that people hold back is left as it is.
func TestAPassOverAPausedSinkEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := pass(t, Rules{})
	s.give("a", "b")
	s.asks = nil
	s.step(HeadsDone{Heads: store.Heads{Pauses: []store.Pause{{ID: 1, Kind: store.PauseSink}}}})
	s.want("sent", s.flying(), "a1 b2")
	s.answer(1, broker.Accepted)
	s.answer(2, broker.Accepted)
	s.want("settled", s.settle()+", "+s.settle(), "done 1 of read 1, done 2 of read 1")
	s.wantEnd(false)
}
