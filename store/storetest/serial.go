package storetest

import (
	"fmt"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var serial = []spec{
	{"EveryOrderOfThreeTransactionsComesOnceAndInOrder", oneWriter(serialOrders)},
	{"ASecondWriterWaitsForTheFirst", oneWriter(secondWriterWaits)},
	{"AnOpenWriterHoldsNoReaderUp", oneWriter(openHoldsNoReader)},
	{"ASettleWaitsForAWriterAndIsRepeated", oneWriter(settleWaits)},
	{"SettlingOneAfterTheOtherKeepsTheRest", oneWriter(settlingEach)},
	{"WhatComesBehindAHeadStaysBehindIt", oneWriter(comesBehind)},
}

// serialOrders runs three transactions of one key one after the other, in every order of their commits and rollbacks, and
// reads while they are open.
func serialOrders(s *suite) {
	r := s.alone()
	for n, p := range readPolicies {
		for rollsBack := -1; rollsBack < 3; rollsBack++ {
			key := fmt.Sprintf("key-%d-%d", n, rollsBack)
			s.interleaving(r, key, []int{0, 0, 1, 1, 2, 2}, rollsBack, readPolicy{
				p.name, p.reads, func(step int) bool { return step%2 == 1 && p.settles(step) }, // a settle waits for an open writer
			})
		}
	}
}

// secondWriterWaits begins a second writer while a first one is open: it goes on when the first one has committed, its
// message has the higher number, and it comes second.
func secondWriterWaits(s *suite) {
	r := s.alone()
	first := s.begin()
	a := s.write(first, s.message("first", "k"))[0]
	second := s.begin()
	done := make(chan outbox.Receipt, 1)
	go func() {
		receipt, err := second.Write(s.ctx, s.message("second", "k"))
		if err != nil {
			s.Errorf("the second writer: %v", err)
		}
		done <- receipt
	}()
	for range 3 {
		s.want("while the first is open", names(r.drain()), []string(nil))
	}
	select {
	case <-done:
		s.Fatal("the second writer did not wait")
	default:
	}
	s.commit(first)
	b := <-done
	if b.Seq <= a.Seq {
		s.Errorf("seq %d of the second follows %d of the first", b.Seq, a.Seq)
	}
	s.want("while the second is open", names(r.drain()), []string{"first"})
	s.commit(second)
	s.want("in the end", names(r.drain()), []string{"second"})
}

// openHoldsNoReader reads all that people and relays read while a transaction that has written is open.
func openHoldsNoReader(s *suite) {
	r := s.alone()
	s.sendNamed("k", "before")
	tx := s.begin()
	s.write(tx, s.message("open", "k"))
	s.want("beside an open transaction", names(r.drain()), []string{"before"})
	s.want("again", names(r.drain()), []string(nil))
	s.want("heads", len(r.heads().Due), 0)
	s.want("backlog", s.sink().Backlog, 1)
	list, err := s.Admin.Messages(s.ctx, store.Filter{})
	s.ok(err, "messages")
	s.want("messages", len(list.Messages), 1)
	s.commit(tx)
	s.want("when it is committed", names(r.drain()), []string{"open"})
}

// settleWaits settles while a transaction that has written is open: what is refused then was not done, and is repeated as
// it is, without a reload.
func settleWaits(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b")
	ts := r.drain()
	tx := s.begin()
	s.write(tx, s.message("c", "k"))
	settled := make(chan error, 1)
	go func() {
		st := store.Settlement{Done: upTo(ts[0]), Published: 1}
		_, err := r.session.Settle(s.ctx, st)
		for end := time.Now().Add(s.Patience); err != nil && outbox.CodeOf(err) != store.ErrReload.Code && time.Now().Before(end); {
			_, err = r.session.Settle(s.ctx, st)
		}
		settled <- err
	}()
	s.want("while the writer is open", names(r.drain()), []string(nil))
	s.commit(tx)
	s.ok(<-settled, "settle")
	s.want("then", names(r.drain()), []string{"c"})
	r.close()
	s.want("after a restart", names(r.successor().drain()), []string{"b", "c"})
}

// settlingEach settles one message after the other, with a graceful restart each time.
func settlingEach(s *suite) {
	left := []string{"1", "2", "3", "4", "5"}
	s.sendNamed("k", left...)
	for r := s.alone(); len(left) > 0; r = r.successor() {
		ts := r.drain()
		s.want("what is left", names(ts), left)
		if len(ts) == 0 {
			return
		}
		r.settle(ts[:1])
		r.close()
		left = left[1:]
	}
}

// comesBehind parks what comes while a head waits: nothing can stand before the head, whenever it was written.
func comesBehind(s *suite) {
	r := s.alone()
	s.sendNamed("k", "head", "behind")
	r.park(time.Hour)
	tx := s.begin()
	s.write(tx, s.message("then", "k"))
	s.commit(tx)
	ts := r.drain()
	s.want("it is blocked", ts[0].Blocked, true)
	r.settle(ts, fromLog(ts[0], behind()))
	r.wantHeads("after")
	s.want("line", parkedNames(r.followers("k", store.Place{})), []string{"head", "behind", "then"})
	s.want("blocked keys", s.sink().BlockedKeys, 1)
}
