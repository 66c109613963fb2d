package core

import (
	"time"

	"github.com/onwardhq/onward/store"
)

// once is a machine's one pass over what was there when it began (Rules.Once). A partition is done with when the store has
// handed over everything committed before the session was joined (part.past), and when a question for heads that was asked
// after that has shown none that was due when the machine began (part.tried). Whatever is committed or comes due later is left
// alone, or a busy outbox would never let a pass end.
type once struct {
	leased     bool          // no partition has gone since the last renewal, which knows where they are
	unattended int           // partitions of nobody, or of a relay that may be dead
	mark       int64         // the highest number of what the pass is for; 0: not known yet
	heard      time.Duration // when the broker last took or refused a message, or nothing was wanted of it
	finished   map[int]bool  // partitions that were done with when they were given back
	gaveUp     bool
}

// patience is for how long a pass waits for a broker that takes nothing: a message may be in flight for one timeout, and the
// breaker closed for its longest pause.
func (m *Machine) patience() time.Duration { return m.rules.PublishTimeout + m.rules.Breaker.Max }

// takePast notes what a page says of the pass.
func (m *Machine) takePast(page *store.Page) {
	if !m.rules.Once {
		return
	}
	m.once.mark = page.Mark
	for _, o := range page.Past {
		if p := m.parts[o.Partition]; p != nil && p.epoch == o.Epoch && !p.past && !p.leaving {
			p.past = true
			m.heads.at = m.now
		}
	}
}

// unread reports whether there is a partition that the pass has to read of.
func (m *Machine) unread() bool {
	if !m.rules.Once {
		return len(m.parts) > 0
	}
	for _, p := range m.order {
		if !p.past {
			return true
		}
	}
	return false
}

// untried are the partitions whose heads are to be asked for.
func (m *Machine) untried() (all []*part) {
	for _, p := range m.order {
		if !p.leaving && (!m.rules.Once || p.past && !p.tried) {
			all = append(all, p)
		}
	}
	return all
}

// wasDue reports whether a head was due when the machine began, as far as that can be said: its time had come before the
// question was asked by more than the machine had lived then.
func (m *Machine) wasDue(h *store.Parked) bool { return h.Overdue >= m.heads.asked }

// takeTried notes which partitions had no head, when they were asked for, that the pass has to try.
func (m *Machine) takeTried(asked []*part, heads *store.Heads) {
	due := map[int]bool{}
	for i := range heads.Due {
		if h := &heads.Due[i]; m.wasDue(h) {
			due[h.Partition] = true
		} else {
			heads.More = false // the longest overdue come first
		}
	}
	for _, p := range asked {
		if m.parts[p.id] == p && !due[p.id] && !heads.More {
			p.tried = true
		}
	}
}

// later reports whether the rest of a line came after the pass began.
func (m *Machine) later(line []store.Parked) bool {
	return m.rules.Once && m.once.mark > 0 && len(line) > 0 && line[0].Seq > m.once.mark
}

// endOnce stops the machine when its pass is done, or when the broker has taken nothing for too long.
func (m *Machine) endOnce() {
	if !m.rules.Once || m.stopping {
		return
	}
	switch {
	case m.done(), m.once.leased && m.pauses.sink != nil: // what people hold back is none of a pass's business
	case m.now >= m.giveUpAt():
		m.once.gaveUp = true
		if m.breaker.state != breakerOpen {
			m.breaker.open(m)
		}
	default:
		return
	}
	m.stop()
	m.leave()
	m.settle()
}

// done reports that every partition of the sink is done with, here or by another live relay.
func (m *Machine) done() bool {
	if !m.once.leased || m.once.unattended > 0 || m.wants() || m.reading.out || m.returning || m.inflight.len() > 0 ||
		m.pending.any() || m.settling != nil {
		return false
	}
	for _, p := range m.order {
		if p.leaving || !p.past || !p.tried {
			return false
		}
	}
	return true
}

// wants reports whether there is something in memory that is to be published.
func (m *Machine) wants() bool { return m.waiting > 0 || len(m.loose) > 0 || len(m.lanes) > 0 }

// giveUpAt is when the pass ends without having published everything. The database's silence is not the broker's.
func (m *Machine) giveUpAt() time.Duration {
	if !m.wants() || m.settleBad > 0 || m.now >= m.leaseEnd-m.rules.LeaseMargin {
		m.once.heard = m.now
	}
	return m.once.heard + m.patience()
}
