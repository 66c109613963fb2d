package core

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
)

// sleeper is a machine whose session promises hints, and who counts what it is asked.
type sleeper struct {
	*script
	promises time.Duration
	polls    int
	asked    int // of them that ask for hints
}

func sleep(t *testing.T, rules Rules) *sleeper {
	t.Helper()
	rules.Hints = true
	s := &sleeper{script: play(t, rules, 0), promises: 2 * time.Second}
	return s
}

// empty answers the read that is out with nothing.
func (s *sleeper) empty() {
	s.t.Helper()
	s.polls++
	e := s.reads[0]
	s.reads = s.reads[1:]
	s.read++
	page := store.Page{No: s.read}
	if e.Room.Await {
		s.asked++
		page.Awaited = s.promises
	}
	s.step(ReadDone{Page: page})
}

// pass lets time pass, in which every read finds nothing.
func (s *sleeper) pass(d time.Duration) {
	s.t.Helper()
	for end := s.now + d; ; {
		for len(s.reads) > 0 {
			s.empty()
		}
		if s.timer > end {
			s.now = end
			return
		}
		s.after(max(0, s.timer-s.now))
	}
}

// count forgets what was counted, and lets time pass.
func (s *sleeper) count(d time.Duration) (polls, asked int) {
	s.t.Helper()
	s.polls, s.asked = 0, 0
	s.pass(d)
	return s.polls, s.asked
}

// found answers the read that is out with a message, and lets it go all its way.
func (s *sleeper) found() {
	s.t.Helper()
	s.polls++
	s.give("-")
	f := s.flights[0]
	s.answer(f.env.Seq, 1)
	s.settle()
}

// A machine that finds nothing asks for hints with its second read, and polls about once a second while they are promised.
func TestAnIdleMachineAsksForHintsAndPollsOnceASecond(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	if s.reads[0].Room.Await {
		t.Error("the first read asks for hints: there may be much to read")
	}
	s.empty()
	s.after(2 * time.Millisecond)
	if len(s.reads) != 1 || !s.reads[0].Room.Await {
		t.Fatalf("then %d reads, want one that asks for hints", len(s.reads))
	}
	s.pass(5 * time.Second)
	if polls, asked := s.count(time.Minute); polls < 58 || polls > 62 || asked != polls {
		t.Errorf("an idle minute has %d polls, %d of which ask for hints, want about 60 and each", polls, asked)
	}
}

// Without a promise of hints an idle machine polls every PollMax, and asks again each time.
func TestWithoutAPromiseAnIdleMachinePollsAsBefore(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	s.promises = 0
	s.pass(5 * time.Second)
	if polls, asked := s.count(time.Minute); polls != 600 || asked != polls {
		t.Errorf("an idle minute has %d polls, %d of which ask, want 600", polls, asked)
	}
	s.m.rules.Hints = false
	if polls, asked := s.count(time.Minute); polls != 600 || asked != 0 {
		t.Errorf("without hints an idle minute has %d polls, %d of which ask, want 600 and 0", polls, asked)
	}
}

// A hint makes an idle machine read at once, and sleep again soon after.
func TestAHintIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	s.pass(10 * time.Second)
	for range 5 {
		s.step(Woken{})
		if len(s.reads) != 1 {
			t.Fatal("a hint is not followed by a read")
		}
		s.found()
		if s.pass(2 * time.Millisecond); s.m.reading.until == 0 {
			t.Error("2 ms after it found something the machine has not asked for hints again")
		}
		s.pass(3 * time.Second)
	}
}

// A hint that comes while a read is out is of what that read may not have seen: it is read again at once.
func TestAHintDuringAReadIsFollowedByAnotherRead(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	s.pass(10 * time.Second)
	s.step(Woken{})
	s.step(Woken{})
	s.empty()
	if len(s.reads) != 1 {
		t.Error("nothing is read after the read that was out")
	}
}

// Hints that lead to nothing are asked for less and less often, as of a busy outbox of whose messages the sink takes none. One that leads
// to something is asked for at once again.
func TestHintsThatLeadToNothingAreAskedForLessOften(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	busy := func(d time.Duration) (polls, asked int) { // somebody commits every millisecond
		s.polls, s.asked = 0, 0
		for range d / time.Millisecond {
			s.pass(time.Millisecond)
			if s.m.reading.until > s.now {
				s.step(Woken{})
			}
		}
		return s.polls, s.asked
	}
	busy(5 * time.Second)
	if polls, asked := busy(10 * time.Second); asked < 80 || asked > 110 || polls > 2*asked+20 {
		t.Errorf("in ten seconds it asked for hints %d times, and polled %d times; want about 100 (PollMax is 100 ms) and twice that", asked, polls)
	}
	s.pass(time.Second)
	s.step(Woken{})
	s.found()
	if s.pass(3 * time.Millisecond); s.m.reading.until <= s.now {
		t.Error("after a hint that led to something the machine does not ask at once")
	}
}

// Where a late poll finds what no hint had said, hints do not come through: the machine polls as without them, until one has come.
func TestAMachineThatMissedAHintPollsAsWithoutThem(t *testing.T) {
	t.Parallel()
	s := sleep(t, Rules{})
	s.pass(10 * time.Second)
	s.after(s.timer - s.now)
	for len(s.reads) == 0 {
		s.after(max(0, s.timer-s.now))
	}
	s.found()
	s.pass(5 * time.Second)
	if polls, _ := s.count(10 * time.Second); polls < 99 || polls > 101 {
		t.Errorf("ten seconds have %d polls, want 100", polls)
	}
	s.step(Woken{})
	s.found()
	s.pass(5 * time.Second)
	if polls, _ := s.count(10 * time.Second); polls < 9 || polls > 11 {
		t.Errorf("after a hint ten seconds have %d polls, want 10", polls)
	}
}

// Messages that come every few milliseconds are found by polls as soon as by hints: hints are hardly asked for. With some time between
// them each is hinted at.
func TestHintsAreForMessagesWithTimeBetweenThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		every       time.Duration
		least, most int
	}{{3 * time.Millisecond, 0, 20}, {10 * time.Millisecond, 190, 200}, {50 * time.Millisecond, 190, 200}} {
		s := sleep(t, Rules{})
		s.pass(10 * time.Second)
		s.asked = 0
		for range 200 {
			s.pass(c.every) // polls find nothing
			if s.m.reading.until > s.now {
				s.step(Woken{})
			}
			for len(s.reads) == 0 {
				s.after(max(0, s.timer-s.now))
			}
			s.give("-")
			s.answer(s.seq, 1)
			for len(s.settles) > 0 {
				s.settles = s.settles[1:]
				s.step(Settled{})
			}
		}
		if s.asked < c.least || s.asked > c.most {
			t.Errorf("for 200 messages, one every %v, hints were asked for %d times, want %d to %d", c.every, s.asked, c.least, c.most)
		}
	}
}

// Where messages come every few milliseconds the first poll that finds nothing is soon followed by another one; else after PollMin.
func TestAStreamOfMessagesIsPolledMoreOften(t *testing.T) {
	t.Parallel()
	for every, want := range map[time.Duration]time.Duration{3 * time.Millisecond: 500 * time.Microsecond, 10 * time.Millisecond: 2 * time.Millisecond} {
		s := sleep(t, Rules{})
		for range 3 {
			s.pass(every)
			s.step(Woken{})
			s.give("-")
		}
		s.empty()
		if got := s.m.reading.at - s.now; got != want {
			t.Errorf("messages come every %v: the next poll is after %v, want %v", every, got, want)
		}
	}
}
