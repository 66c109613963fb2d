package core

import (
	"slices"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
)

// pending is the settlement that is being gathered.
type pending struct {
	no        uint64
	begun     bool
	since     time.Duration // when its first outcome came
	parts     []*part       // whose decided messages are to be told
	verdicts  []store.Verdict
	published int
	freed     load    // of the window, once it is settled
	parks     []*lane // one entry a verdict that shuts the lane
	outs      []*lane // one entry a verdict that takes a parked row of the lane away
	loose     []*item // parked rows without a key
	built     store.Settlement
	letters   []Letter
	out       []broker.Published // with Rules.Claims
}

func (p *pending) start(now time.Duration) {
	if !p.begun {
		p.begun, p.since = true, now
	}
}

func (p *pending) any() bool { return p.begun }

func (m *Machine) newVerdict(it *item, v store.Verdict) store.Verdict {
	v.Partition, v.Seq, v.ID, v.Key = it.part.id, it.rec.Seq, it.rec.ID, it.rec.Key
	v.FromParked = it.parked
	v.Attempts = it.attempts
	return v
}

// verdict keeps a verdict for the settlement. That of a message of the log goes out with the settlement that moves the
// cursor past it, never before: it would be read again after a crash and be parked, or published, twice. Until then a
// second verdict takes the first one's place, so that a park and its unpark strike each other out.
func (m *Machine) verdict(it *item, v store.Verdict) {
	if !it.untold() {
		m.pending.start(m.now)
		it.part.lastIn = m.pending.no
		m.pending.verdicts = append(m.pending.verdicts, v)
		return
	}
	v.FromParked = false
	if it.v != nil && v.Tried == nil {
		v.Tried = it.v.Tried
	}
	it.v = &v
	if v.To == store.Out && v.Position == "" && v.Tried == nil {
		it.v = nil
	}
}

// untold reports whether the item is in the log, and not in any settlement yet.
func (it *item) untold() bool { return it.read != nil && it.index >= it.read.told }

// shuts notes that the item's verdict shuts its lane until it is settled.
func (m *Machine) shuts(it *item) {
	it.lane.parking++
	if it.untold() {
		it.shutting = true
	} else {
		m.pending.parks = append(m.pending.parks, it.lane)
	}
}

// settle sends what was gathered when it is time.
func (m *Machine) settle() {
	if m.settling != nil {
		if m.settleBad > 0 && m.now >= m.settleAt {
			m.sendSettlement()
		}
		return
	}
	if !m.pending.any() || !m.settleDue() {
		m.stopped()
		return
	}
	p := m.pending
	p.build(m)
	m.settling = &p
	m.pending = pending{no: p.no + 1}
	m.sendSettlement()
}

func (m *Machine) settleDue() bool {
	p := &m.pending
	return m.stopping || m.leaving() || m.now >= p.since+m.rules.SettleEvery ||
		p.published+len(p.verdicts) >= m.rules.SettleCount ||
		m.window.messages >= m.rules.Messages || m.window.bytes >= m.rules.Bytes
}

// build makes the settlement: how far each partition is decided, and the verdicts.
func (p *pending) build(m *Machine) {
	s := &p.built
	for _, pt := range p.parts {
		pt.dirty = false
		if pt.gone {
			continue
		}
		p.tell(m, pt)
	}
	s.Verdicts = p.verdicts
	for i := range s.Verdicts {
		id := s.Verdicts[i].ID
		if l, ok := m.letters[id]; ok {
			if delete(m.letters, id); s.Verdicts[i].To == store.Dead {
				p.letters = append(p.letters, l)
			}
		}
	}
	s.Published = p.published
}

// tell adds what is decided of a partition. It never goes past an undecided message: the rows of a key must reach the
// database in their order.
func (p *pending) tell(m *Machine, pt *part) {
	full := 0
	for _, r := range pt.reads {
		if r.n > r.told {
			p.built.Done = append(p.built.Done, store.Done{Partition: pt.id, Read: r.no, N: r.n})
			for i := r.told; i < r.n; i++ {
				it := &r.items[i]
				m.retained.add(-1, -it.size())
				if it.v != nil {
					p.verdicts = append(p.verdicts, *it.v)
					it.v = nil
				}
				if it.shutting {
					it.shutting = false
					p.parks = append(p.parks, it.lane)
				}
				if it.counted {
					it.counted = false
					p.freed.add(1, it.size())
				}
				m.goesOut(p, it)
			}
			pt.retained -= r.n - r.told
			m.counters.Settled += r.n - r.told
			r.told = r.n
		}
		if r.told < len(r.items) {
			break
		}
		full++
	}
	pt.reads = slices.Delete(pt.reads, 0, full)
}

func (m *Machine) sendSettlement() {
	m.settleAt = never
	m.do(Settle{Settlement: m.settling.built, Letters: m.settling.letters, Published: m.settling.out})
	m.settling.letters = nil
}

// goesOut notes that a settlement says of a message that it is published, if it was.
func (m *Machine) goesOut(p *pending, it *item) {
	if m.rules.Claims && it.out {
		it.out = false
		p.out = append(p.out, broker.Published{Partition: it.part.id, ID: it.rec.ID})
	}
}

func (m *Machine) settled(e Settled) {
	if m.settling == nil {
		return
	}
	if e.Err != nil {
		if !m.broken(e.Err) { // the same settlement again; meanwhile nothing is published
			m.settleAt = m.now + doubled(100*time.Millisecond, 5*time.Second, m.settleBad)
			m.settleBad++
		}
		return
	}
	p := m.settling
	m.settling, m.settleBad, m.settledNo = nil, 0, p.no
	m.counters.Gone += e.Settled.Gone
	m.window.add(-p.freed.messages, -p.freed.bytes)
	for _, id := range e.Settled.Fenced {
		m.drop(id)
	}
	for _, it := range p.loose {
		if m.loose[it.rec.ID] == it {
			delete(m.loose, it.rec.ID)
			m.heads.moved(it.rec.ID)
		}
	}
	m.settledLanes(p)
	if len(p.parks)+len(p.outs)+len(p.loose) > 0 && m.heads.at > m.now+headsSoon {
		m.heads.at = m.now + headsSoon
	}
}

// settledLanes goes on with the keys whose verdicts are in the database now.
func (m *Machine) settledLanes(p *pending) {
	for _, l := range p.parks {
		l.parking--
		if l.parking == 0 && m.reading.out && !l.guard {
			l.guard = true
			m.reading.guards = append(m.reading.guards, l)
		}
	}
	for _, l := range p.outs {
		l.unsettled--
	}
	for _, ls := range [][]*lane{p.parks, p.outs} {
		for _, l := range ls {
			m.heads.moved(l.key)
			m.next(l)
		}
	}
}
