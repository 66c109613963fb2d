package core

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func TestOneMessageOfAKeyIsInFlightAndKeysGoInParallel(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "a", "b", "-", "-")
	s.want("in flight", s.flying(), "a1 b3 4 5")
	s.answer(1, broker.Accepted)
	s.want("in flight", s.flying(), "b3 4 5 a2")
	s.answer(3, broker.Accepted)
	s.answer(4, broker.Duplicate)
	s.answer(5, broker.Accepted)
	s.answer(2, broker.Accepted)
	s.want("settlement", s.settle(), "done 5 of read 1")
	if n, keys := s.m.Backlog(); n != 0 || keys != 0 {
		t.Errorf("state is left: %d messages, %d keys", n, keys)
	}
}

func TestPartitionsOfAPageGoInTurn(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Messages: 5}, 0, 1, 2)
	page := store.Page{No: 1}
	for p, n := range []int{6, 1, 2} {
		part := store.Part{Owned: store.Owned{Partition: p, Epoch: 1}}
		for i := range n {
			r := store.Record{}
			r.Seq, r.Partition = int64(10*p+i), p
			r.ID = outbox.ID{15: byte(r.Seq)}
			part.Records = append(part.Records, r)
		}
		page.Parts = append(page.Parts, part)
	}
	s.reads = nil
	s.step(ReadDone{Page: page})
	if got := s.flying(); got != "0 10 20 1" {
		t.Errorf("in flight: %s", got)
	}
}

func TestSettleOnlyThePrefixThatIsDecided(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "b", "c")
	s.answer(1, broker.Accepted)
	s.answer(3, broker.Accepted)
	s.want("settlement", s.settle(), "done 1 of read 1")
	s.answer(2, broker.Accepted)
	s.want("settlement", s.settle(), "done 3 of read 1")
}

func TestAFailureParksItsKeyAloneAndBehindIt(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "a", "b")
	s.answer(1, broker.Retry)
	s.answer(3, broker.Accepted)
	s.give("a", "b")
	s.want("in flight", s.flying(), "b5")
	s.want("settlement", s.settle(), "done 3 of read 1; done 1 of read 2; park 1 retry; park 2 behind; park 4 behind")
	v := s.m // the key has no state once its parked rows are in the database and no read is out that does not know them
	s.give() // the read that was out
	s.answer(5, broker.Accepted)
	if _, keys := v.Backlog(); keys != 0 {
		t.Errorf("%d keys have state in memory after everything was settled", keys)
	}
}

func TestAReadThatWasOutWhenAKeyWasParkedDoesNotOvertake(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a")
	s.answer(1, broker.Retry)
	s.settle() // a read is out since before: its flags do not know the parked row
	s.give("a")
	s.want("in flight", s.flying(), "")
	s.want("settlement", s.settle(), "done 1 of read 2; park 2 behind")
}

func TestAMessageWhoseKeyWasBlockedIsParkedBehind(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a!", "b", "a", "c+")
	s.want("in flight", s.flying(), "b2")
	s.answer(2, broker.Accepted)
	s.want("settlement", s.settle(), "done 4 of read 1; park 1 behind; park 3 behind; park 4 scheduled")
}

func TestAParkedKeyIsReleasedInOrder(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.heads(parked("a", 101, 1))
	s.want("in flight", s.flying(), "a101")
	s.heads(parked("a", 101, 1)) // it is still due in the database
	s.want("in flight", s.flying(), "a101")
	s.answer(101, broker.Accepted)
	s.want("settlement", s.settle(), "out 101 again")
	s.followers(parked("a", 102, 0), parked("a", 103, 0))
	s.want("in flight", s.flying(), "a102")
	s.give("a!") // read while rows were parked
	s.answer(102, broker.Accepted)
	s.answer(103, broker.Accepted)
	s.want("settlement", s.settle(), "done 1 of read 1; out 102 again; out 103 again; park 1 behind")
	s.followers(parked("a", 1, 0))
	s.give("a") // read after all was released: still behind what is on its way
	s.want("in flight", s.flying(), "a1")
	s.answer(1, broker.Accepted)
	s.settle()
	s.followers(parked("a", 2, 0))
	s.answer(2, broker.Accepted)
	s.settle()
	s.followers()
	s.give()
	if _, keys := s.m.Backlog(); keys != 0 {
		t.Errorf("%d keys have state in memory", keys)
	}
	s.after(100 * time.Millisecond)
	s.give("a")
	s.want("in flight", s.flying(), "a3")
}

func TestAttemptsEndInADeadLetterThatHoldsItsKey(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Retry: Retry{Attempts: 3}}, 0)
	head := parked("a", 7, 5)
	head.Before = 3 // requeued after three: this is the last of the new budget
	s.heads(head)
	s.answer(7, broker.Retry)
	s.peekSettle()
	v := s.settles[0].Settlement.Verdicts[0]
	if v.To != store.Dead || !v.Blocks || !v.FromParked || v.Code != CodeAttemptsExhausted || v.Attempts != 6 || v.Tried.No != 6 {
		t.Errorf("verdict is %+v, want a blocking dead letter after attempt 6", v)
	}
}

func TestSkippingTopicsLetTheirKeyGoOn(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Topic: func(string) Topic { return Topic{Skips: true} }}, 0)
	s.give("a", "a")
	s.answer(1, broker.Rejected)
	s.want("in flight", s.flying(), "a2")
	s.answer(2, broker.Accepted)
	s.want("settlement", s.settle(), "done 2 of read 1; dead 1")
}

func TestTopicRulesMakeDeadLettersInTurn(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Topic: func(string) Topic { return Topic{RequireKey: true} }}, 0)
	s.give("a", "-")
	s.want("in flight", s.flying(), "a1")
	s.answer(1, broker.Accepted)
	s.want("settlement", s.peekSettle(), "done 2 of read 1; dead 2")
	if v := s.settles[0].Settlement.Verdicts[0]; v.Code != outbox.ErrKeyRequired.Code || v.Blocks {
		t.Errorf("verdict is %+v", v)
	}
}

func TestAnUnavailableBrokerCostsNoAttempt(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "a")
	for range 5 {
		s.want("in flight", s.flying(), "a1")
		s.answer(1, broker.Unavailable)
	}
	s.want("in flight", s.flying(), "")
	probes := s.probes
	s.after(2 * time.Second)
	if s.probes != probes+1 {
		t.Fatalf("%d probes, want one more than %d", s.probes, probes)
	}
	s.step(Probed{Err: store.ErrNotFound})
	s.after(10 * time.Second)
	s.step(Probed{})
	s.want("in flight", s.flying(), "a1") // one message shows whether it takes again
	if got := s.flights[0].env.Attempt; got != 1 {
		t.Errorf("attempt is %d, want 1", got)
	}
	s.answer(1, broker.Accepted)
	s.want("in flight", s.flying(), "a2")
}

func TestAnOpenBreakerLetsOneMessageThroughFirst(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.m.breaker.state = breakerHalf
	s.give("a", "b", "c")
	s.want("in flight", s.flying(), "a1")
	s.answer(1, broker.Accepted)
	s.want("in flight", s.flying(), "b2 c3")
}

func TestThrottlingDelaysTheSinkNotTheKey(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "b")
	f := s.flights[0]
	s.flights = nil
	s.step(Published{Answers: []Answer{{f.ticket, f.index, broker.Result{Outcome: broker.Throttled, After: 3 * time.Second}}}})
	s.after(2900 * time.Millisecond)
	s.want("in flight", s.flying(), "")
	s.after(100 * time.Millisecond)
	if got := s.flying(); !strings.Contains(got, "a1") && !strings.Contains(got, "b2") {
		t.Errorf("in flight: %q", got)
	}
}

func TestTheThirdUnansweredInARowCountsIfOthersGetThrough(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Breaker: Breaker{Failures: 100}}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.give("a", "-", "-", "-")
	s.answer(2, broker.Uncertain)
	s.answer(2, broker.Uncertain)
	s.answer(2, broker.Uncertain) // nobody else got through: no attempt
	s.want("in flight", s.flying(), "3 4 5 a2")
	s.answer(3, broker.Accepted)
	s.answer(2, broker.Uncertain)
	s.answer(4, broker.Accepted)
	s.answer(5, broker.Accepted)
	s.want("settlement", s.settle(), "done 1 of read 1; done 4 of read 2; park 2 retry")
}

func TestAPublisherThatDoesNotAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{PublishTimeout: 5 * time.Second}, 0)
	s.give("a")
	first := s.flights[0]
	s.flights = nil
	s.after(4900 * time.Millisecond)
	s.want("in flight", s.flying(), "")
	s.after(200 * time.Millisecond)
	if s.m.Counters().Outcomes[broker.Uncertain] != 1 {
		t.Fatal("no uncertain outcome after the publish timeout")
	}
	s.step(Published{Answers: []Answer{{first.ticket, first.index, broker.Result{Outcome: broker.Retry}}}}) // too late: it says nothing any more
	if s.m.Counters().Retried != 0 {
		t.Error("a late answer was taken")
	}
}

func TestTheWindowBoundsWhatIsPublishedAndNotSettled(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Messages: 3}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.give("-", "-", "-", "-", "-")
	s.want("in flight", s.flying(), "2 3") // the last place is for the one in front, which is on its way already
	s.answer(2, broker.Accepted)
	s.answer(3, broker.Accepted)
	s.want("in flight", s.flying(), "4") // two are published and not settled, and this one is in front
	s.settle()
	s.want("in flight", s.flying(), "4 5")
}

func TestTheWindowCountsBytesToo(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Bytes: 100}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.bytes = 40
	s.give("-", "-", "-", "-")
	s.want("in flight", s.flying(), "2 3")
	s.answer(2, broker.Accepted)
	s.want("in flight", s.flying(), "3") // published, and not settled
	s.settle()
	s.want("in flight", s.flying(), "3 4")
	s.bytes = 1000
	s.answer(3, broker.Accepted)
	s.answer(4, broker.Accepted)
	s.settle()
	s.answer(5, broker.Accepted)
	s.settle()
	s.give("-") // larger than the window: it goes alone
	s.want("in flight", s.flying(), "6")
}

func TestTheWindowsLastPlaceIsForAMessageInFront(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Messages: 3}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.give("a", "a", "b", "c", "d")
	s.want("in flight", s.flying(), "a2 b4")
	s.answer(4, broker.Accepted)
	s.want("in flight", s.flying(), "a2") // 4 waits for 3 in the window
	s.answer(2, broker.Accepted)          // 3 is in front now
	s.want("in flight", s.flying(), "a3")
	s.want("settlement", s.settle(), "done 1 of read 2") // at once, because the window is full
	s.want("in flight", s.flying(), "a3")
	s.answer(3, broker.Accepted)
	s.want("settlement", s.settle(), "done 3 of read 2")
	s.want("in flight", s.flying(), "c5 d6")
}

func TestASettleThatFailsClosesTheTapAndIsRepeatedAsItIs(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	first := s.peekSettle()
	s.settles = nil
	s.step(Settled{Err: outbox.ErrNoTransaction})
	s.give("-", "-")
	s.want("in flight", s.flying(), "")
	s.after(200 * time.Millisecond)
	s.want("settlement", s.peekSettle(), first)
	s.settle()
	s.want("in flight", s.flying(), "2 3")
}

func TestNothingIsPublishedWhenTheLeaseIsNearlyOver(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{LeaseMargin: time.Second}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.step(Leased{Lease: store.Lease{Owned: []store.Owned{{Partition: 0, Epoch: 1}}}, Until: s.now + 1500*time.Millisecond})
	s.now += 600 * time.Millisecond
	s.give("-")
	s.want("in flight", s.flying(), "")
	s.step(Leased{Lease: store.Lease{Owned: []store.Owned{{Partition: 0, Epoch: 1}}}, Until: s.now + 15*time.Second})
	s.want("in flight", s.flying(), "2")
}

func TestAVoidSessionEndsTheMachine(t *testing.T) {
	t.Parallel()
	for _, e := range []Event{ReadDone{Err: store.ErrReload}, HeadsDone{Err: store.ErrFenced}, RenewFailed{Err: store.ErrReload}} {
		s := play(t, Rules{}, 0)
		s.step(e)
		if _, ok := s.ended.(Reload); !ok {
			t.Errorf("after %T: ended with %v, want Reload", e, s.ended)
		}
		s.step(Tick{})
	}
}

func TestStopFinishesWhatIsInFlightAndWhatLiesBeforeIt(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.give("a", "a", "b", "a")
	s.want("in flight", s.flying(), "a2 b4")
	s.answer(4, broker.Accepted) // 3 waits behind 2, and 4 is published behind both; 5 need not go any more
	s.step(Stop{})
	s.answer(2, broker.Accepted)
	s.answer(3, broker.Accepted)
	got := ""
	for s.ended == nil {
		got = s.settle()
	}
	if _, ok := s.ended.(Stopped); !ok {
		t.Fatalf("ended with %T", s.ended)
	}
	s.want("in flight", s.flying(), "")
	s.want("last settlement", got, "done 3 of read 2")
}

func TestSurplusIsSettledAndGivenBack(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0, 1, 2)
	s.give("-")
	lease := store.Lease{Surplus: 2}
	for p := range 3 {
		lease.Owned = append(lease.Owned, store.Owned{Partition: p, Epoch: 1})
	}
	s.step(Leased{Lease: lease, Until: time.Hour})
	if len(s.given) != 1 || !slices.Equal(s.given[0], []int{1, 2}) {
		t.Fatalf("given back %v, want the idle ones", s.given)
	}
	s.step(Leased{Lease: lease, Until: time.Hour}) // not twice
	s.step(GaveBack{Partitions: []int{1, 2}})
	s.step(Leased{Lease: store.Lease{Owned: lease.Owned}, Until: time.Hour}) // an old answer does not bring them back
	if len(s.given) != 1 || len(s.m.parts) != 1 {
		t.Errorf("given back %v, holds %d partitions", s.given, len(s.m.parts))
	}
}

func TestAPartitionReadBeforeItsLeaseWasToldIsTaken(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 5)
	s.give("-") // of partition 0, which was claimed meanwhile
	s.want("in flight", s.flying(), "1")
}

func TestAPipelineSendsAKeyInOrderAndGoesBackToTheOneThatFailed(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Pipeline: true, Breaker: Breaker{Failures: 100}}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.give("a", "a", "a")
	s.want("in flight", s.flying(), "a2 a3 a4")
	s.answer(2, broker.Unavailable)
	s.answer(3, broker.Retry) // because 2 failed
	s.want("in flight", s.flying(), "a4")
	s.answer(4, broker.Retry)
	s.want("in flight", s.flying(), "a2 a3 a4")
	s.answer(2, broker.Accepted)
	s.answer(3, broker.Retry)
	s.answer(4, broker.Retry)
	s.want("settlement", s.settle(), "done 1 of read 1; done 3 of read 2; park 3 retry; park 4 behind")
}

func TestASlowKeyIsParkedOnceAPageWaitsBehindItAndItsAnswerTakesTheRowAway(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Page: 4}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.settle()
	s.give("a", "b", "b", "a")
	s.answer(3, broker.Accepted)
	s.answer(4, broker.Accepted)
	s.after(900 * time.Millisecond)
	s.want("in flight", s.flying(), "a2")
	s.after(300 * time.Millisecond)
	s.after(300 * time.Millisecond)
	s.want("settlement", s.settle(), "done 4 of read 2; park 2 retry; park 5 behind")
	s.answer(2, broker.Accepted)
	s.want("settlement", s.settle(), "out 2 again")
}

func TestAParkAndItsUnparkStrikeEachOtherOut(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Page: 2, SettleEvery: time.Minute}, 0)
	s.give("-")
	s.answer(1, broker.Accepted)
	s.give("a", "a")
	s.after(1100 * time.Millisecond)
	s.after(300 * time.Millisecond)
	s.answer(2, broker.Accepted)
	s.after(time.Minute)
	s.want("settlement", s.settle(), "done 1 of read 1; done 2 of read 2; park 3 behind")
}

func TestBackoffDoublesWithFullJitterOrIsFixed(t *testing.T) {
	t.Parallel()
	m := New(Rules{Retry: Retry{First: time.Second, Max: 10 * time.Second}, Rand: rand.New(rand.NewPCG(1, 2))})
	for n, most := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 10 * time.Second} {
		high := time.Duration(0)
		for range 1000 {
			d := m.backoff(n)
			if d < 0 || d > most {
				t.Fatalf("backoff %d is %v, above %v", n, d, most)
			}
			high = max(high, d)
		}
		if high < most*9/10 {
			t.Errorf("backoff %d never came near %v: %v", n, most, high)
		}
	}
	m = New(Rules{Retry: Retry{Fixed: true, First: time.Minute}, Rand: rand.New(rand.NewPCG(1, 2))})
	if d := m.backoff(7); d != time.Minute {
		t.Errorf("fixed backoff is %v", d)
	}
}

// A lane may be shut by a message that came later (its key had something due when it was read). What is before that one and has to
// be sent again stays behind together with all that waits behind it: the first to go out of the lane is never a later one.
func TestWhatIsSentAgainInAShutLaneKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for name, pipeline := range map[string]bool{"one at a time": false, "pipeline": true} {
		for _, o := range []broker.Outcome{broker.Uncertain, broker.Unavailable, broker.Throttled} {
			t.Run(name+", "+o.String(), func(t *testing.T) {
				t.Parallel()
				s := play(t, Rules{Pipeline: pipeline, Messages: 2}, 0)
				s.give("k")
				s.want("in flight", s.flying(), "k1")
				s.give("k", "k", "k!")
				for _, f := range slices.Clone(s.flights) {
					s.answer(f.env.Seq, o)
				}
				s.want("in flight", s.flying(), "")
				s.want("settlement", s.settle(), "done 1 of read 1; done 3 of read 2; park 1 behind; park 2 behind; park 3 behind; park 4 behind")
				s.after(time.Minute)
				s.want("in flight", s.flying(), "")
			})
		}
	}
}
