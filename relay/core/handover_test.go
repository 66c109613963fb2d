package core

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
)

// A partition is given back when what was sent of it is answered, and that is settled: the next owner would send it again.
func TestABusyPartitionIsGivenBackWhenItIsSettled(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "a", "b")
	s.step(Leased{Lease: store.Lease{Owned: []store.Owned{{Partition: 0, Epoch: 1}}, Surplus: 1}, Until: time.Hour})
	given := func(when string, want int) {
		t.Helper()
		if len(s.given) != want {
			t.Fatalf("%s: given back %v", when, s.given)
		}
	}
	given("two are in flight", 0)
	s.answer(1, broker.Accepted)
	s.answer(3, broker.Accepted)
	given("the second one of its key lies before what was published", 0)
	s.want("in flight", s.flying(), "a2")
	s.answer(2, broker.Accepted)
	given("nothing is settled", 0)
	last := ""
	for len(s.given) == 0 {
		last = s.settle()
	}
	s.want("last settlement", last, "done 3 of read 1")
	given("all is settled", 1)
}

// Each message of a batch has an answer of its own.
func TestAFailureWithinABatchIsThatMessagesAlone(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "b", "c")
	s.step(Published{Answers: []Answer{
		{Ticket: s.flights[0].ticket, Index: 0, Result: broker.Result{Outcome: broker.Accepted}},
		{Ticket: s.flights[0].ticket, Index: 1, Result: broker.Result{Outcome: broker.Retry, Code: "test/code"}},
		{Ticket: s.flights[0].ticket, Index: 2, Result: broker.Result{Outcome: broker.Accepted}},
	}})
	s.want("settlement", s.settle(), "done 3 of read 1; park 2 retry")
}
