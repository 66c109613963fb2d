package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
)

// pause tells the machine what is paused: "sink", "topic NAME" or "key NAME" each.
func (s *script) pause(due []store.Parked, pauses ...store.Pause) {
	s.t.Helper()
	for range 3 {
		if i := slices.IndexFunc(s.asks, func(e Effect) bool { _, ok := e.(ReadHeads); return ok }); i >= 0 {
			s.asks = slices.Delete(s.asks, i, i+1)
			s.step(HeadsDone{Heads: store.Heads{Due: due, Pauses: pauses}})
			return
		}
		s.after(Beat)
	}
	s.t.Fatal("heads are not asked for")
}

var (
	sinkPaused = store.Pause{ID: 1, Kind: store.PauseSink}
	keyPaused  = store.Pause{ID: 2, Kind: store.PauseKey, Name: "a"}
	allPaused  = store.Pause{ID: 3, Kind: store.PauseTopic, Name: ">"}
)

func TestNothingIsPublishedBeforeItIsKnownWhatIsPaused(t *testing.T) {
	t.Parallel()
	m := New(Rules{Rand: rand.New(rand.NewPCG(1, 2))})
	m.breaker.state = breakerClosed
	s := &script{t: t, m: m}
	s.step(Leased{Lease: store.Lease{Owned: []store.Owned{{Partition: 0, Epoch: 1}}}, Until: time.Hour})
	s.give("a", "b", "-")
	s.want("in flight before", s.flying(), "")
	s.pause(nil, keyPaused)
	s.want("in flight after", s.flying(), "b2 3")
	s.answer(2, broker.Accepted)
	s.answer(3, broker.Accepted)
	s.want("settlement", s.settle(), "done 3 of read 1; park 1 paused")
}

func TestAPausedSinkPublishesNothingAndParksNothing(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Page: 4}, 0)
	s.give("a", "a")
	s.want("in flight", s.flying(), "a1")
	s.pause([]store.Parked{parked("p", 90, 1)}, sinkPaused)
	s.answer(1, broker.Accepted) // what was in flight ends
	s.want("in flight", s.flying(), "")
	s.want("settlement", s.settle(), "done 1 of read 1")
	s.give("b", "-", "-")
	s.want("in flight", s.flying(), "")
	for range 20 {
		s.after(Beat)
	}
	if len(s.reads) > 0 {
		t.Error("it reads on, although its memory is full")
	}
	if len(s.settles) > 0 {
		t.Errorf("it settles %s", s.peekSettle())
	}
	i := slices.IndexFunc(s.asks, func(e Effect) bool { _, ok := e.(ReadHeads); return ok })
	if i < 0 || s.asks[i].(ReadHeads).Max != 0 {
		t.Fatalf("it asks %v, want for what is paused alone", s.asks)
	}
	s.pause(nil)
	if got := s.flying(); got != "p90 a2 b3 4 5" && got != "a2 b3 4 5 p90" {
		t.Errorf("in flight when it is resumed: %s", got)
	}
	if c := s.m.Counters(); c.Retried != 0 || c.Dead != 0 || c.Parked != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestAPausedKeyIsParkedAndOthersGoOn(t *testing.T) {
	t.Parallel()
	for _, pipeline := range []bool{false, true} {
		s := play(t, Rules{Pipeline: pipeline}, 0)
		s.pause(nil, keyPaused)
		s.give("a", "b", "a", "-", "b")
		s.answer(2, broker.Accepted)
		s.answer(4, broker.Accepted)
		s.answer(5, broker.Accepted)
		s.want("settlement", s.settle(), "done 5 of read 1; park 1 paused; park 3 behind")
		s.give("a!", "b")
		s.answer(7, broker.Accepted)
		s.want("settlement", s.settle(), "done 2 of read 2; park 6 behind")
		s.give() // what was read before it was settled
		if n, keys := s.m.Backlog(); n != 0 || keys != 0 {
			t.Errorf("state is left: %d messages, %d keys", n, keys)
		}
		if c := s.m.Counters(); c.Retried != 0 || c.Dead != 0 {
			t.Errorf("counters %+v", c)
		}
	}
}

// What is in memory already when the pause is heard of is held too, in its turn.
func TestAPauseHoldsWhatIsInMemory(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "a", "a")
	s.pause(nil, keyPaused)
	s.want("in flight", s.flying(), "a1")
	s.answer(1, broker.Accepted)
	s.want("in flight", s.flying(), "")
	s.want("settlement", s.settle(), "done 3 of read 1; park 2 paused; park 3 behind")
}

// A key stays in order across topics: a message of a paused topic holds it.
func TestAPausedTopicHoldsTheKeysOfItsMessages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"u.1", "u.*", ">"} {
		s := play(t, Rules{}, 0)
		s.pause(nil, store.Pause{ID: 9, Kind: store.PauseTopic, Name: name}, store.Pause{ID: 8, Kind: store.PauseTopic, Name: "v"})
		page := store.Page{No: 1, Parts: []store.Part{{Owned: store.Owned{Partition: 0, Epoch: 1}}}}
		for i, topic := range []string{"t", "u.1", "t", "t"} {
			r := store.Record{}
			r.Seq, r.Topic, r.Key, r.ID[15] = int64(i+1), topic, []string{"a", "a", "a", ""}[i], byte(i+1)
			page.Parts[0].Records = append(page.Parts[0].Records, r)
		}
		s.reads = nil
		s.step(ReadDone{Page: page})
		want, parks := "a1 4", "done 4 of read 1; park 2 paused; park 3 behind"
		if name == ">" {
			want, parks = "", "done 4 of read 1; park 1 paused; park 2 behind; park 3 behind; park 4 paused"
		}
		s.want("in flight under "+name, s.flying(), want)
		for _, f := range slices.Clone(s.flights) {
			s.answer(f.env.Seq, broker.Accepted)
		}
		s.want("settlement under "+name, s.settle(), parks)
	}
}

func TestAPausedHeadIsNotTriedAndKeepsItsAttempts(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.pause([]store.Parked{parked("a", 1, 3), parked("b", 2, 1)}, keyPaused)
	s.want("in flight", s.flying(), "b2")
	s.after(20 * time.Millisecond)
	v := s.settles[0].Settlement.Verdicts
	if len(v) != 1 || v[0].Reason != store.ReasonPaused || v[0].Pause != keyPaused.ID || v[0].Attempts != 3 || !v[0].FromParked || v[0].Tried != nil {
		t.Errorf("verdicts %+v", v)
	}
	s.settle()
	s.give()
	s.pause([]store.Parked{parked("a", 1, 3)})
	s.want("in flight when it is resumed", s.flying(), "b2 a1")
	if got := s.flights[1].env.Attempt; got != 4 {
		t.Errorf("it is attempt %d, want 4", got)
	}
}

// A line that is going out stops in front of a message that is paused.
func TestALineStopsAtAPausedMessage(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	topic := store.Pause{ID: 7, Kind: store.PauseTopic, Name: "paused"}
	s.pause([]store.Parked{parked("a", 1, 1)}, topic)
	s.answer(1, broker.Accepted)
	s.settle()
	second, third := parked("a", 2, 0), parked("a", 3, 0)
	second.Topic = "paused"
	s.followers(second, third)
	s.want("in flight", s.flying(), "")
	s.want("settlement", s.settle(), "park 2 paused again")
	s.give()
	if n, keys := s.m.Backlog(); n != 0 || keys != 0 {
		t.Errorf("state is left: %d messages, %d keys", n, keys)
	}
}

// Of several pauses, the one that lasts longest is waited for.
func TestTheLongestPauseCounts(t *testing.T) {
	t.Parallel()
	soon, late := time.Unix(100, 0), time.Unix(200, 0)
	short, long := keyPaused, allPaused
	short.ExpiresAt, long.ExpiresAt = &soon, &late
	topic := store.Pause{ID: 4, Kind: store.PauseTopic, Name: "t"}
	for i, pauses := range [][]store.Pause{{short, long}, {long, short}, {keyPaused, long}, {long, keyPaused}, {topic, short}, {short, topic}} {
		s := play(t, Rules{}, 0)
		s.pause(nil, pauses...)
		s.give("a")
		s.after(20 * time.Millisecond)
		want := []int64{long.ID, long.ID, keyPaused.ID, keyPaused.ID, topic.ID, topic.ID}[i]
		if got := s.settles[0].Settlement.Verdicts[0].Pause; got != want {
			t.Errorf("%d: parked under pause %d, want %d", i, got, want)
		}
	}
}

// While the broker is away it is asked what is paused, so that nothing of it goes out when the broker is back.
func TestPausesAreHeardOfWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{Breaker: Breaker{Failures: 1}}, 0)
	s.give("a")
	s.answer(1, broker.Unavailable)
	if !s.m.BreakerOpen() {
		t.Fatal("the breaker is closed")
	}
	s.asks = nil
	s.m.heads.out = false
	s.pause(nil, sinkPaused)
	s.after(time.Minute)
	s.step(Probed{})
	s.want("in flight", s.flying(), "")
	s.pause(nil)
	s.want("in flight when it is resumed", s.flying(), "a1")
}

// What a paused sink has in front of messages that were published is parked when its partition is given back.
func TestAPausedSinkGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	s := play(t, Rules{}, 0)
	s.give("a", "b", "a")
	s.pause(nil, sinkPaused)
	s.answer(2, broker.Accepted)
	s.answer(1, broker.Unavailable)
	s.step(Leased{Lease: store.Lease{Owned: []store.Owned{{Partition: 0, Epoch: 1}}, Surplus: 1}, Until: time.Hour})
	s.want("settlement", s.settle(), "done 2 of read 1; park 1 paused")
	if fmt.Sprint(s.given) != "[[0]]" {
		t.Errorf("given back: %v", s.given)
	}
}
