package core

import (
	"time"

	"github.com/onwardhq/onward/store"
)

// pending is the settlement that is being gathered.
type pending struct {
	no        uint64
	begun     bool
	since     time.Duration // when its first outcome came
	parts     []*part       // whose decided messages are to be told
	verdicts  []store.Verdict
	struck    int // verdicts taken back
	published int
	freed     load    // of the window, once it is settled
	parks     []*lane // one entry a verdict that shuts the lane
	outs      []*lane // one entry a verdict that takes a parked row of the lane away
	loose     []*item // parked rows without a key
	built     store.Settlement
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

// verdict adds a verdict to the settlement being gathered; there is one for each message, so a second one of the same
// message takes the first one's place. A park and its unpark strike each other out.
func (m *Machine) verdict(it *item, v store.Verdict) {
	p := &m.pending
	p.start(m.now)
	it.part.lastIn = p.no
	if it.verdictNo != p.no {
		it.verdictNo, it.verdictAt = p.no, len(p.verdicts)
		p.verdicts = append(p.verdicts, v)
		return
	}
	first := p.verdicts[it.verdictAt]
	if v.Tried == nil {
		v.Tried = first.Tried
	}
	v.FromParked = first.FromParked
	if v.To == store.Out && !v.FromParked && v.Position == "" && v.Tried == nil {
		v.To = 0
		p.struck++
	}
	p.verdicts[it.verdictAt] = v
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
	if p.struck > 0 {
		s.Verdicts = make([]store.Verdict, 0, len(p.verdicts)-p.struck)
		for _, v := range p.verdicts {
			if v.To != 0 {
				s.Verdicts = append(s.Verdicts, v)
			}
		}
	}
	s.Published = p.published
}

func (p *pending) tell(m *Machine, pt *part) {
	keep := pt.reads[:0]
	for _, r := range pt.reads {
		if r.n > r.told {
			p.built.Done = append(p.built.Done, store.Done{Partition: pt.id, Read: r.no, N: r.n})
			for i := r.told; i < r.n; i++ {
				it := &r.items[i]
				m.retained.add(-1, -it.size())
				if it.counted {
					it.counted = false
					p.freed.add(1, it.size())
				}
			}
			pt.retained -= r.n - r.told
			m.counters.Settled += r.n - r.told
			r.told = r.n
		}
		if r.told < len(r.items) {
			keep = append(keep, r)
		}
	}
	clear(pt.reads[len(keep):])
	pt.reads = keep
}

func (m *Machine) sendSettlement() {
	m.settleAt = never
	m.do(Settle{Settlement: m.settling.built})
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
			m.next(l)
		}
	}
}
