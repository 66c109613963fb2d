// Package core decides what a relay does on one sink: a pure state machine. It has no goroutine, no clock, no I/O and no
// random source of its own; package relay turns its effects into I/O, and a simulator can run it against models.
package core

import (
	"math/rand/v2"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Retry says when a message that failed is tried again.
type Retry struct {
	Fixed    bool          // every time after First; otherwise doubling from First to Max, with full jitter
	First    time.Duration // 0: 1s
	Max      time.Duration // 0: 10m
	Attempts int           // 0: 10; -1: for ever
}

// Breaker says when a sink stops publishing because its broker takes nothing, and when it tries again.
type Breaker struct {
	Failures int           // that many in a row open it; 0: 5
	First    time.Duration // 0: 1s
	Max      time.Duration // 0: 30s
}

// Rules are what a machine goes by. Zero values are the defaults given.
type Rules struct {
	Messages       int           // published and not yet settled; 0: 1000
	Bytes          int           // of their payloads; 0: 16 MiB
	Page           int           // most messages of one read; 0: 2048
	PageBytes      int           // most payload bytes of one read; 0: 16 MiB
	SettleEvery    time.Duration // 0: 20ms
	SettleCount    int           // 0: 1000
	PublishTimeout time.Duration // 0: 10s
	PollMin        time.Duration // 0: 2ms
	PollMax        time.Duration // 0: 100ms
	Hints          bool          // the session says when there is something to read, where it is asked to
	LeaseMargin    time.Duration // nothing is published in the last part of a lease; 0: 1s
	Retry          Retry
	Breaker        Breaker
	Pipeline       bool   // the publisher keeps order in a pipeline
	Lineage        string // goes out with every message
	Relay          string // the relay's name, for sinks that send it
	Positions      bool   // keep the broker's position of every message
	Letters        bool   // settlements come with their dead letters
	Claims         bool   // settlements come with the messages that they say are published
	Once           bool   // stop by itself after one pass over what was there when it began
	// Topic says what holds for a topic; nil: nothing in particular.
	Topic func(topic string) Topic
	// Rand is the source of jitter, seeded by the shell or the simulator. Needed.
	Rand *rand.Rand
}

// Topic is what holds for one topic.
type Topic struct {
	Skips      bool // a dead letter lets its key go on
	RequireKey bool // a message without a key becomes a dead letter with key-required
	MaxPayload int  // a larger payload becomes a dead letter with payload-too-large; 0: no limit
}

// Letter is a message that a settlement makes a dead letter.
type Letter struct {
	Envelope broker.Envelope // as it was published; Attempt: failed attempts so far
	Code     outbox.Code     // of the last failure
	Error    string
}

// Codes of dead letters that the machine makes itself.
const (
	// CodeAttemptsExhausted: the message failed as often as it may. Its attempts keep each failure's own code.
	CodeAttemptsExhausted outbox.Code = "onward/attempts-exhausted"
)

// Event is what happened. Each Read, Settle, ReadHeads, ReadFollowers, GiveBack and Probe is answered by one event.
type Event interface{ event() }

// Effect is what is to be done.
type Effect interface{ effect() }

// The events.
type (
	// Leased: a renewal was answered. Until is on the machine's clock.
	Leased struct {
		Lease store.Lease
		Until time.Duration
	}
	// RenewFailed: a renewal was not answered, or said that the session is void.
	RenewFailed struct{ Err error }
	// ReadDone answers a Read. After an Err that is neither ErrReload nor ErrFenced the machine reads again.
	ReadDone struct {
		Page store.Page
		Err  error
	}
	// HeadsDone answers a ReadHeads. Err as in ReadDone.
	HeadsDone struct {
		Heads store.Heads
		Err   error
	}
	// FollowersDone answers a ReadFollowers of Key. Err as in ReadDone.
	FollowersDone struct {
		Key     store.Key
		Records []store.Parked
		Err     error
	}
	// Published: answers of the publisher.
	Published struct{ Answers []Answer }
	// Settled answers a Settle. An Err that is neither ErrReload nor ErrFenced is repeated as it is.
	Settled struct {
		Settled store.Settled
		Err     error
	}
	// GaveBack answers a GiveBack.
	GaveBack struct {
		Partitions []int
		Err        error
	}
	// Probed answers a Probe.
	Probed struct{ Err error }
	// Tick: a timer ran out.
	Tick struct{}
	// Woken: somebody says that there may be something to read. A hint: it may be lost, or lead to nothing.
	Woken struct{}
	// Stop: finish what is in flight, settle, and say Stopped.
	Stop struct{}
)

func (Leased) event()        {}
func (RenewFailed) event()   {}
func (ReadDone) event()      {}
func (HeadsDone) event()     {}
func (FollowersDone) event() {}
func (Published) event()     {}
func (Settled) event()       {}
func (GaveBack) event()      {}
func (Probed) event()        {}
func (Tick) event()          {}
func (Woken) event()         {}
func (Stop) event()          {}

// Answer is the publisher's for one message of a Publish.
type Answer struct {
	Ticket uint64 // of the Publish
	Index  int    // in its batch
	Result broker.Result
}

// The effects.
type (
	// Read: call Session.Read; one at a time.
	Read struct{ Room store.Room }
	// ReadHeads: call Session.Heads for at most Max heads of these partitions; one at a time.
	ReadHeads struct {
		Partitions []int
		Max        int
	}
	// ReadFollowers: call Session.Followers from the beginning of the key's line.
	ReadFollowers struct {
		Key  store.Key
		Room store.Room
	}
	// Publish: hand the batch to the publisher, and its answers to the machine under this ticket, in any order and number.
	Publish struct {
		Ticket uint64
		Batch  []broker.Envelope
	}
	// Settle: call Session.Settle; one at a time.
	Settle struct {
		Settlement store.Settlement
		// Letters are its dead letters, with Rules.Letters; none where the settlement is sent again.
		Letters []Letter
		// Published are the messages that it says are published, with Rules.Claims; also where it is sent again.
		Published []broker.Published
	}
	// GiveBack: call Session.GiveBack; everything of these partitions is settled.
	GiveBack struct{ Partitions []int }
	// Probe: call the publisher's Check.
	Probe struct{}
	// Timer: send a Tick at this time; replaces the one before.
	Timer struct{ At time.Duration }
	// Reload: drop this machine; the session must be loaded again (or joined again, where Err is ErrFenced).
	Reload struct{ Err error }
	// Stopped: nothing is in flight and everything is settled. GaveUp: with Rules.Once, the broker took nothing for
	// PublishTimeout and Breaker.Max, and what was to be published is left in the database.
	Stopped struct{ GaveUp bool }
)

func (Read) effect()          {}
func (ReadHeads) effect()     {}
func (ReadFollowers) effect() {}
func (Publish) effect()       {}
func (Settle) effect()        {}
func (GiveBack) effect()      {}
func (Probe) effect()         {}
func (Timer) effect()         {}
func (Reload) effect()        {}
func (Stopped) effect()       {}
