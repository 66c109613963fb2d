package core

import (
	"errors"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Machine decides for one sink of one relay, from one load of its session to the next. It is not safe for concurrent
// use: one goroutine owns it.
//
// A message read from the log becomes an item of its partition and, where it has a key, of its key's lane. Items that
// may go wait in ready; sent ones are in flight until the publisher answers or PublishTimeout passes. Every item ends
// decided: published, parked or dead. What is decided in the order of the partition, and every verdict, goes out with
// the next settlement; one is in flight at a time.
type Machine struct {
	rules   Rules
	now     time.Duration
	effects []Effect

	parts    map[int]*part
	order    []*part // parts by their numbers: what goes over all of them does so alike in each run of a seed
	front    int     // the partition whose front got the last place of the window last
	lanes    map[store.Key]*lane
	loose    map[outbox.ID]*item // parked messages without a key that are in memory
	leaseEnd time.Duration
	epochs   map[int]int64 // of partitions that were dropped
	stopping bool
	over     bool // Reload or Stopped was said

	ready    fifo[readyItem]
	inflight fifo[sent]
	tickets  map[uint64]*batch
	ticket   uint64
	window   load // published and not yet settled
	breaker  breaker
	pauses   pauses
	accepted uint64        // messages that got through, ever
	delayed  time.Duration // nothing is published before: the broker asked to wait
	slowNext time.Duration // when to look for what holds up its partition

	reading  reading
	heads    asking
	follow   []*lane // lanes whose followers are wanted
	asking   *lane   // that of the ReadFollowers that is out
	retained load    // log records in memory: undecided, or decided behind an undecided one
	waiting  int     // of them undecided

	pending   pending
	settling  *pending
	settledNo uint64
	settleAt  time.Duration        // repeat of a settlement that failed
	settleBad int                  // failures in a row: the tap is closed while it is not 0
	letters   map[outbox.ID]Letter // dead, and in no settlement yet
	returning bool                 // a GiveBack is out
	once      once

	timer    time.Duration
	counters Counters
}

// load counts messages and the bytes of their payloads.
type load struct{ messages, bytes int }

func (l *load) add(n, bytes int) { l.messages += n; l.bytes += bytes }

// Counters count what a machine has done since it was made.
type Counters struct {
	Read       int // messages taken from the log
	Published  int // duplicates included
	Duplicates int // of them the broker had already
	Retried    int // failures that used up an attempt and will be tried again
	Parked     int // times that a message was parked: for a retry, for its time, or behind another one of its key
	Dead       int // messages that became dead letters
	Settled    int // messages of the log whose outcome is in the database
	Gone       int // verdicts on parked messages that a person had removed
	Outcomes   [broker.Uncertain + 1]int
}

// New returns a machine without partitions. Its clock starts at zero; its breaker starts open, so that the first thing
// it asks for is a Probe.
func New(rules Rules) *Machine {
	rules.fill()
	m := &Machine{
		rules:   rules,
		parts:   map[int]*part{},
		lanes:   map[store.Key]*lane{},
		loose:   map[outbox.ID]*item{},
		tickets: map[uint64]*batch{},
		epochs:  map[int]int64{},
		letters: map[outbox.ID]Letter{},
		timer:   never,
	}
	m.breaker.state = breakerOpen
	m.reading.interval = rules.PollMin
	m.pending.no = 1
	m.once.finished = map[int]bool{}
	return m
}

// Filled is the rules with the defaults in place of what is not set.
func (r Rules) Filled() Rules {
	r.fill()
	return r
}

func (r *Rules) fill() {
	def(&r.Messages, 1000)
	def(&r.Bytes, 16<<20)
	def(&r.Page, 2048)
	def(&r.PageBytes, 16<<20)
	def(&r.SettleEvery, 20*time.Millisecond)
	def(&r.SettleCount, 1000)
	def(&r.PublishTimeout, 10*time.Second)
	def(&r.PollMin, 2*time.Millisecond)
	def(&r.PollMax, 100*time.Millisecond)
	def(&r.LeaseMargin, time.Second)
	def(&r.Retry.First, time.Second)
	def(&r.Retry.Max, 10*time.Minute)
	def(&r.Retry.Attempts, 10)
	def(&r.Breaker.Failures, 5)
	def(&r.Breaker.First, time.Second)
	def(&r.Breaker.Max, 30*time.Second)
	if r.Topic == nil {
		r.Topic = func(string) Topic { return Topic{} }
	}
}

func def[T comparable](v *T, d T) {
	if *v == *new(T) {
		*v = d
	}
}

const never = time.Duration(1<<63 - 1)

// Step takes what happened, in this order, at now (time since the machine was made; it never goes back), and returns
// what is to be done. After a Reload or Stopped effect the machine does nothing more.
func (m *Machine) Step(now time.Duration, events ...Event) []Effect {
	m.now = max(m.now, now)
	m.effects = nil
	for _, e := range events {
		if m.over {
			break
		}
		m.take(e)
	}
	if !m.over {
		m.pump()
	}
	return m.effects
}

// Counters returns what the machine has done so far.
func (m *Machine) Counters() Counters { return m.counters }

// Backlog returns how many messages of the log are in memory and undecided, and how many keys have state in memory.
func (m *Machine) Backlog() (messages, keys int) { return m.waiting, len(m.lanes) }

// Pauses returns what is paused, as far as the machine knows.
func (m *Machine) Pauses() []store.Pause { return m.pauses.all }

// BreakerOpen reports whether the machine has stopped publishing because the broker takes nothing.
func (m *Machine) BreakerOpen() bool { return m.breaker.state == breakerOpen }

// Hints reports whether the machine wants to be woken.
func (m *Machine) Hints() bool { return m.rules.Hints }

func (m *Machine) take(e Event) {
	switch e := e.(type) {
	case Leased:
		m.leased(e)
	case RenewFailed:
		m.broken(e.Err)
	case ReadDone:
		m.readDone(e)
	case HeadsDone:
		m.headsDone(e)
	case FollowersDone:
		m.followersDone(e)
	case Published:
		for _, a := range e.Answers {
			m.answered(a)
		}
	case Settled:
		m.settled(e)
	case GaveBack:
		m.gaveBack(e)
	case Probed:
		m.breaker.probed(m, e.Err)
	case Woken:
		m.woken()
	case Stop:
		m.stop()
	case Tick:
		m.timer = never
	}
}

// pump does whatever can be done now, and sets the timer for what can be done later.
func (m *Machine) pump() {
	m.expire()
	m.publish()
	m.leave()
	m.settle()
	m.endOnce()
	if m.over {
		return
	}
	m.askHeads()
	m.askFollowers()
	m.read()
	m.probe()
	if at := m.wakeAt(); at != m.timer && at != never {
		m.timer = at
		m.do(Timer{At: at})
	}
}

func (m *Machine) do(e Effect) { m.effects = append(m.effects, e) }

// wakeAt is the next time at which something is to be done without an event.
func (m *Machine) wakeAt() time.Duration {
	at := never
	sooner := func(t time.Duration) { at = min(at, max(t, m.now)) }
	if m.readable() {
		sooner(m.reading.at)
	}
	if m.askable() {
		sooner(m.headsAt())
	}
	if m.settling != nil {
		sooner(m.settleAt)
	} else if m.pending.any() {
		sooner(m.pending.since + m.rules.SettleEvery)
	}
	if m.breaker.state == breakerOpen && !m.breaker.probing && !m.stopping {
		sooner(m.breaker.until)
	}
	if m.delayed > m.now {
		sooner(m.delayed)
	}
	if s, ok := m.inflight.peek(); ok {
		sooner(s.at + m.rules.PublishTimeout)
		sooner(m.slowNext)
	}
	if m.rules.Once && !m.stopping && m.wants() {
		sooner(m.giveUpAt())
	}
	return at
}

// broken ends the machine where the session is void; otherwise the caller repeats what it asked.
func (m *Machine) broken(err error) bool {
	if !errors.Is(err, store.ErrReload) && !errors.Is(err, store.ErrFenced) {
		return false
	}
	m.over = true
	m.effects = append(m.effects, Reload{Err: err})
	return true
}
