package core

import (
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// slowAfter is how long a message may be in flight, or a partition be held up, before the key in front is parked.
const slowAfter = time.Second

func (m *Machine) succeeded(it *item, r broker.Result) {
	m.counters.Published++
	if r.Outcome == broker.Duplicate {
		m.counters.Duplicates++
	}
	m.pending.published++
	it.out = true
	if it.parked {
		m.away(it, m.newVerdict(it, store.Verdict{To: store.Out, Position: m.position(r)}))
		return
	}
	if p := m.position(r); p != "" {
		m.verdict(it, m.newVerdict(it, store.Verdict{To: store.Out, Position: p}))
	}
	m.finish(it)
}

func (m *Machine) position(r broker.Result) string {
	if !m.rules.Positions {
		return ""
	}
	return r.Position
}

// finish decides an item of the log that goes no further.
func (m *Machine) finish(it *item) {
	if it.lane != nil {
		it.lane.leaveQueue(it)
	}
	m.decide(it)
	m.next(it.lane)
}

// failed: the message itself could not be taken. It is parked for its next try, or dies.
func (m *Machine) failed(it *item, r broker.Result, took time.Duration) {
	it.attempts++
	tried := m.tried(it, r, took)
	if budget := m.rules.Retry.Attempts; budget > 0 && it.attempts-it.before >= budget {
		m.dead(it, CodeAttemptsExhausted, tried.Error, tried)
		return
	}
	m.counters.Retried++
	v := m.newVerdict(it, store.Verdict{
		To: store.Park, Reason: store.ReasonRetry, Due: m.backoff(it.attempts - it.before),
		Code: tried.Code, Error: tried.Error, Tried: tried,
	})
	m.park(it, v)
}

func (m *Machine) rejected(it *item, r broker.Result, took time.Duration) {
	it.attempts++
	tried := m.tried(it, r, took)
	m.dead(it, tried.Code, tried.Error, tried)
}

func (m *Machine) tried(it *item, r broker.Result, took time.Duration) *store.Attempt {
	a := &store.Attempt{No: it.attempts, Outcome: r.Outcome.String(), Code: r.Code, Took: took}
	if a.Code == "" {
		a.Code = broker.CodeRejected
	}
	if r.Err != nil {
		a.Error = r.Err.Error()
	}
	return a
}

// dead makes a message a dead letter. Its key waits for somebody to requeue or discard it, unless its topic skips.
func (m *Machine) dead(it *item, code outbox.Code, text string, tried *store.Attempt) {
	m.counters.Dead++
	blocks := it.lane != nil && !m.rules.Topic(it.rec.Topic).Skips
	v := m.newVerdict(it, store.Verdict{To: store.Dead, Blocks: blocks, Code: code, Error: text, Tried: tried})
	if m.rules.Letters {
		m.letters[it.rec.ID] = Letter{m.envelope(it, it.attempts), code, text}
	}
	switch {
	case blocks:
		m.park(it, v)
	case it.parked:
		m.away(it, v)
	default:
		m.uncount(it)
		m.verdict(it, v)
		m.finish(it)
	}
}

// park gives a verdict that holds the item's key, and shuts its lane.
func (m *Machine) park(it *item, v store.Verdict) {
	m.uncount(it)
	if v.To == store.Park {
		m.counters.Parked++
	}
	l := it.lane
	m.verdict(it, v)
	if l == nil {
		m.looseEnd(it)
		return
	}
	m.shuts(it)
	if it.slow {
		it.slow, l.slow = false, nil
	} else {
		l.leaveQueue(it)
		m.decide(it)
	}
	m.shutLane(l)
	m.next(l)
}

// away gives a verdict that takes a parked row away; its key goes on with the next ones.
func (m *Machine) away(it *item, v store.Verdict) {
	if it.counted {
		it.counted = false
		m.pending.freed.add(1, it.size())
	}
	if !it.untold() {
		m.goesOut(&m.pending, it)
	}
	l := it.lane
	m.verdict(it, v)
	if l == nil {
		m.looseEnd(it)
		return
	}
	if !it.untold() {
		l.unsettled++
		m.pending.outs = append(m.pending.outs, l)
	}
	if it.slow {
		it.slow, l.slow = false, nil
		l.releasing = true
	} else {
		l.leaveQueue(it)
		m.decide(it)
	}
	m.next(l)
}

// looseEnd finishes a message without a key that is, or becomes, a parked row of its own.
func (m *Machine) looseEnd(it *item) {
	if it.slow {
		it.slow = false
		return
	}
	if it.read == nil {
		m.pending.loose = append(m.pending.loose, it)
	}
	m.decide(it)
}

// parkBehind parks an item of the log behind its key.
func (m *Machine) parkBehind(it *item) {
	m.counters.Parked++
	m.verdict(it, m.newVerdict(it, store.Verdict{To: store.Park, Reason: store.ReasonBehind}))
	m.shuts(it)
	m.decide(it)
}

// schedule parks a message whose time is ahead; it blocks nobody.
func (m *Machine) schedule(it *item) {
	m.counters.Parked++
	m.verdict(it, m.newVerdict(it, store.Verdict{To: store.Park, Reason: store.ReasonScheduled}))
	m.decide(it)
}

// parkSlow parks, one a partition, messages that hold up their partition: in flight for a second while a whole page
// waits behind, or in front of a quarter of the window for a second. Its later answer takes the parked row away.
func (m *Machine) parkSlow() {
	if m.now < m.slowNext {
		return
	}
	m.slowNext = m.now + slowAfter/4
	for _, p := range m.order {
		if p.held < m.rules.Messages/4 || p.held == 0 {
			p.since = never
		} else if p.since == never {
			p.since = m.now
		}
		if p.retained < m.rules.Page && (p.since == never || m.now < p.since+slowAfter) {
			continue
		}
		it := p.front()
		if it == nil || it.slow {
			continue
		}
		holdsUp := p.since != never && m.now >= p.since+slowAfter && it.lane != nil
		if it.state == flying && (holdsUp || m.now >= it.at+slowAfter) {
			m.parkInFlight(it)
			p.since = never
		}
	}
}

// parkInFlight parks an item whose answer is awaited.
func (m *Machine) parkInFlight(it *item) {
	m.counters.Parked++
	v := m.newVerdict(it, store.Verdict{
		To: store.Park, Reason: store.ReasonRetry, Due: m.rules.PublishTimeout + slowAfter,
		Code: broker.CodePublishTimeout, Error: "in flight for long while its partition waited",
	})
	m.verdict(it, v)
	it.slow = true
	l := it.lane
	if l != nil {
		m.shuts(it)
		l.leaveQueue(it)
	}
	m.decide(it)
	it.parked = true
	if l != nil {
		l.slow = it
		m.shutLane(l)
	}
}

// endSlow: the answer that was awaited says nothing; the parked row goes its way.
func (m *Machine) endSlow(it *item) {
	it.slow = false
	if l := it.lane; l != nil {
		l.slow = nil
		m.next(l)
	}
}
