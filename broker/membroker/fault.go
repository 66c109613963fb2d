package membroker

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Fault is what goes wrong with one message. The zero Fault is none.
type Fault struct {
	// Outcome is what is answered. Accepted together with Dropped is a broker that lies: the checker of a test must see it.
	Outcome broker.Outcome
	After   time.Duration // with Throttled
	Code    outbox.Code   // "": the usual one of the outcome
	Err     error         // nil: an error that says that it was injected
	// Delivery is what becomes of the message itself, whatever is answered.
	Delivery Delivery
	Stall    bool // never answered, not even when the context ends
	Panic    bool // Publish panics at this message: what stands behind it in the batch is neither sent nor answered
}

// Delivery is what becomes of a message that meets a fault.
type Delivery uint8

const (
	Dropped Delivery = iota // it never arrives
	Stored                  // it arrives: with Uncertain or Stall this is a lost acknowledgement
	Late                    // it arrives when Broker.DeliverLate is called
)

// LostAck is a message that is stored while its sender hears nothing.
func LostAck() Fault { return Fault{Outcome: broker.Uncertain, Delivery: Stored} }

// Rule decides which messages meet a fault. n counts the messages that were handed to the broker, by all publishers,
// from 1. A rule is called once for each message, under the broker's lock: it needs no lock of its own, must not call
// the broker, and must not keep the envelope.
type Rule func(n int, e broker.Envelope) Fault

// Nth fails the n-th message that is handed over, counted from 1.
func Nth(n int, f Fault) Rule {
	return func(i int, _ broker.Envelope) Fault { return pick(i == n, f) }
}

// Every fails each n-th message.
func Every(n int, f Fault) Rule {
	return func(i int, _ broker.Envelope) Fault { return pick(i%n == 0, f) }
}

// Chance fails messages with probability p, drawn from the seed in the order in which they are handed over.
func Chance(seed uint64, p float64, f Fault) Rule {
	random := rand.New(rand.NewPCG(seed, 0))
	return func(int, broker.Envelope) Fault { return pick(random.Float64() < p, f) }
}

// When fails the messages that the predicate selects.
func When(selects func(broker.Envelope) bool, f Fault) Rule {
	return func(_ int, e broker.Envelope) Fault { return pick(selects(e), f) }
}

// AtMost lets a rule fail no more than that many messages.
func AtMost(times int, r Rule) Rule {
	return func(i int, e broker.Envelope) Fault {
		if times <= 0 {
			return Fault{}
		}
		f := r(i, e)
		if !f.none() {
			times--
		}
		return f
	}
}

// none reports whether nothing goes wrong.
func (f Fault) none() bool {
	return f.Outcome == 0 && f.Delivery == Dropped && !f.Stall && !f.Panic
}

func pick(selected bool, f Fault) Fault {
	if selected {
		return f
	}
	return Fault{}
}

var errInjected = errors.New("membroker: injected fault")

// result is the answer of a fault.
func (f Fault) result() broker.Result {
	r := broker.Result{Outcome: f.Outcome, After: f.After, Code: f.Code, Err: f.Err}
	if f.Outcome == broker.Accepted || f.Outcome == broker.Duplicate {
		return r
	}
	if r.Err == nil {
		r.Err = errInjected
	}
	if r.Code == "" {
		r.Code = usualCode(f.Outcome)
	}
	return r
}

func usualCode(o broker.Outcome) outbox.Code {
	switch o {
	case broker.Throttled:
		return broker.CodeThrottled
	case broker.Rejected, broker.Retry:
		return broker.CodeRejected
	case broker.Uncertain:
		return broker.CodePublishTimeout
	default:
		return broker.CodeUnavailable
	}
}
