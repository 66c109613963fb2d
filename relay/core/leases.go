package core

import (
	"slices"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
)

// leased takes what is held now: new partitions, lost ones, and how many are to be given back.
func (m *Machine) leased(e Leased) {
	m.leaseEnd = e.Until
	if e.Lease.Lineage != "" {
		m.rules.Lineage = e.Lease.Lineage
	}
	held := make(map[int]bool, len(e.Lease.Owned))
	for _, o := range e.Lease.Owned {
		held[o.Partition] = true
		if p := m.parts[o.Partition]; p != nil && p.epoch != o.Epoch {
			m.drop(o.Partition)
		}
		if m.parts[o.Partition] == nil && o.Epoch > m.epochs[o.Partition] {
			m.newPart(o)
			m.reading.at, m.heads.at = m.now, m.now
		}
	}
	leaving, lost := 0, []int(nil)
	for _, p := range m.order {
		if !held[p.id] {
			lost = append(lost, p.id)
		} else if p.leaving {
			leaving++
		}
	}
	for _, id := range lost {
		m.drop(id)
	}
	m.once.leased, m.once.unattended = true, e.Lease.Unattended
	if n := e.Lease.Surplus - leaving; n > 0 && !m.stopping {
		m.chooseLeaving(n)
	}
}

// chooseLeaving picks the partitions to give back: those with the least in memory.
func (m *Machine) chooseLeaving(n int) {
	var ps []*part
	for _, p := range m.order {
		if !p.leaving {
			ps = append(ps, p)
		}
	}
	slices.SortFunc(ps, func(a, b *part) int {
		if d := a.retained + a.parked - b.retained - b.parked; d != 0 {
			return d
		}
		return b.id - a.id
	})
	for _, p := range ps[:min(n, len(ps))] {
		m.startLeaving(p)
	}
}

// startLeaving cuts off what need not be done here: everything behind the last message that was sent or decided, for
// what lies before it must be settled, or the next owner would publish again.
func (m *Machine) startLeaving(p *part) {
	p.leaving = true
	for i := len(p.reads) - 1; i >= 0; i-- {
		r := p.reads[i]
		last := len(r.items)
		for last > r.told && (r.items[last-1].state == waiting || r.items[last-1].state == ready) {
			last--
		}
		m.cut(p, r, last)
		if last > r.told {
			break
		}
		p.reads = p.reads[:i]
	}
	for _, l := range m.lanesOf(p) { // parked rows that wait in memory stay parked
		if l.releasing {
			l.unready()
			for _, it := range slices.Clone(l.queue) {
				if it.state == waiting {
					m.stayBehind(it)
				}
			}
			m.next(l)
		}
	}
	for _, it := range m.loose {
		if it.part == p && it.state == ready {
			m.dropLoose(it)
		}
	}
}

// dropLoose forgets a parked message without a key that is not in flight: the store has it.
func (m *Machine) dropLoose(it *item) {
	it.state = dropped
	it.gen++
	it.part.parked--
	delete(m.loose, it.rec.ID)
}

// cut drops the items of a read from position last on.
func (m *Machine) cut(p *part, r *partRead, last int) {
	for i := last; i < len(r.items); i++ {
		p.past = false
		it := &r.items[i]
		it.state = dropped
		it.gen++
		m.waiting--
		p.retained--
		m.retained.add(-1, -it.size())
		if it.lane != nil {
			it.lane.leaveQueue(it)
			m.forget(it.lane)
		}
	}
	r.items = r.items[:last]
}

// leaving reports whether any partition is on its way out.
func (m *Machine) leaving() bool {
	for _, p := range m.order {
		if p.leaving && !p.returned {
			return true
		}
	}
	return false
}

// leave gives back the partitions that have nothing left to settle.
func (m *Machine) leave() {
	var clean []int
	for _, p := range m.order {
		if !p.leaving || p.returned {
			continue
		}
		if m.breaker.state == breakerOpen || m.pauses.sink != nil {
			m.parkHoles(p)
		}
		if m.clean(p) && !m.returning && !m.stopping {
			p.returned = true
			clean = append(clean, p.id)
		}
	}
	if clean != nil {
		slices.Sort(clean)
		m.returning = true
		m.do(GiveBack{Partitions: clean})
	}
}

// clean reports whether everything of the partition is settled.
func (m *Machine) clean(p *part) bool {
	return len(p.reads) == 0 && p.parked == 0 && m.settledNo >= p.lastIn
}

// parkHoles parks what a broker that takes nothing, or a pause of the sink, keeps undecided in front of published messages,
// so that a partition can be given back without publishing those again.
func (m *Machine) parkHoles(p *part) {
	for _, r := range slices.Clone(p.reads) {
		for i := range r.items {
			it := &r.items[i]
			if it.state != waiting && it.state != ready {
				continue
			}
			if it.lane != nil && it.lane.shut() {
				m.stayBehind(it)
				continue
			}
			if s := m.pauses.sink; s != nil {
				m.park(it, m.paused(it, s))
				continue
			}
			m.park(it, m.newVerdict(it, store.Verdict{
				To: store.Park, Reason: store.ReasonRetry, Code: broker.CodeUnavailable,
				Error: "the broker took nothing when the partition was given back",
			}))
		}
	}
}

func (m *Machine) gaveBack(e GaveBack) {
	m.returning = false
	if e.Err != nil {
		if m.broken(e.Err) {
			return
		}
		for _, id := range e.Partitions {
			if p := m.parts[id]; p != nil {
				p.returned = false
			}
		}
		return
	}
	for _, id := range e.Partitions {
		if p := m.parts[id]; p != nil && p.returned { // not one that has come back meanwhile
			m.once.finished[id] = p.past && p.tried
			m.drop(id)
		}
	}
}

// stop finishes what is in flight; nothing new is read.
func (m *Machine) stop() {
	if m.stopping {
		return
	}
	m.stopping = true
	for _, p := range m.order {
		if !p.leaving {
			m.startLeaving(p)
		}
	}
}

// stopped says so once everything is settled.
func (m *Machine) stopped() {
	if !m.stopping || m.settling != nil || m.pending.any() || m.returning {
		return
	}
	for _, p := range m.order {
		if !m.clean(p) && !p.returned {
			return
		}
	}
	m.over = true
	m.do(Stopped{GaveUp: m.once.gaveUp})
}
