package core

import (
	"time"

	"github.com/onwardhq/onward/broker"
)

type breakerState uint8

const (
	breakerClosed breakerState = iota
	breakerOpen                // nothing is published; probes ask the publisher's Check
	breakerHalf                // one message shows whether the broker takes again
)

// breaker stops a sink whose broker takes nothing.
type breaker struct {
	state    breakerState
	failures int           // in a row
	opened   int           // times in a row without a success between
	until    time.Duration // next probe
	probing  bool          // a Probe is out
	probe    *item         // the message of the half-open state
}

// heard counts an answer.
func (b *breaker) heard(m *Machine, it *item, o broker.Outcome) {
	half := b.state == breakerHalf && b.probe == it
	if half {
		b.probe = nil
	}
	switch o {
	case broker.Unavailable, broker.Uncertain:
		b.failures++
		if half || b.state == breakerClosed && b.failures >= m.rules.Breaker.Failures {
			b.open(m)
		}
	case broker.Throttled:
	default:
		m.once.heard = m.now
		b.failures = 0
		if o == broker.Accepted || o == broker.Duplicate {
			m.accepted++
		}
		if half {
			b.state, b.opened = breakerClosed, 0
			m.reading.at = m.now
			m.heads.at = m.now
		}
	}
}

// open waits twice as long each time, with half of it at random.
func (b *breaker) open(m *Machine) {
	b.state, b.failures, b.probe = breakerOpen, 0, nil
	wait := doubled(m.rules.Breaker.First, m.rules.Breaker.Max, b.opened)
	b.opened++
	b.until = m.now + wait/2 + time.Duration(m.rules.Rand.Int64N(int64(wait/2)+1))
}

// probed takes the publisher's answer to a Check.
func (b *breaker) probed(m *Machine, err error) {
	b.probing = false
	if b.state != breakerOpen {
		return
	}
	if err != nil {
		b.open(m)
		return
	}
	b.state = breakerHalf
}

func (m *Machine) probe() {
	b := &m.breaker
	if b.state == breakerOpen && !b.probing && m.now >= b.until && !m.stopping {
		b.probing = true
		m.do(Probe{})
	}
}

// doubled is first * 2^n, at most most.
func doubled(first, most time.Duration, n int) time.Duration {
	d := first
	for ; n > 0 && d < most; n-- {
		d *= 2
	}
	return min(d, most)
}

// backoff is the time to the next try after the n-th failure, from 1: fixed, or doubling with full jitter.
func (m *Machine) backoff(n int) time.Duration {
	r := m.rules.Retry
	if r.Fixed {
		return r.First
	}
	return time.Duration(m.rules.Rand.Int64N(int64(doubled(r.First, r.Max, n-1)) + 1))
}
