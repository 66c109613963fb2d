package core

import (
	"slices"

	"github.com/onwardhq/onward/store"
)

// lane is a key with messages in memory. It is open while its messages come from the log; once one of them is parked it
// is shut, and what comes by of its key is parked behind; it is releasing while its parked rows go out, chunk by chunk,
// in the store's order.
type lane struct {
	key       store.Key
	part      *part
	queue     []*item // undecided, in order; those in flight first
	flying    int
	parking   int  // verdicts that park or block the key, not yet settled
	unsettled int  // verdicts that take parked rows away, not yet settled
	guard     bool // a read was out when they were settled: its flags do not know them
	releasing bool
	recover   bool  // pipeline: one failed, wait until nothing is in flight
	closing   bool  // pipeline: one was parked, and some behind it are in flight
	slow      *item // parked while in flight
	asked     bool  // in Machine.follow
	gone      bool
}

// shut reports whether what comes of the key from the log must be parked behind.
func (l *lane) shut() bool {
	return l.parking > 0 || l.guard || l.releasing || l.closing || l.slow != nil
}

func (m *Machine) lane(p *part, key string) *lane {
	k := store.Key{Partition: p.id, Key: key}
	l := m.lanes[k]
	if l == nil {
		l = &lane{key: k, part: p}
		m.lanes[k] = l
	}
	return l
}

// offer makes ready what of the lane may go now.
func (m *Machine) offer(l *lane) {
	if len(l.queue) == 0 || l.slow != nil {
		return
	}
	if !m.rules.Pipeline {
		if l.flying == 0 && l.queue[0].state == waiting {
			m.makeReady(l.queue[0])
		}
		return
	}
	if l.recover {
		return
	}
	for _, it := range l.queue {
		if it.state == waiting {
			m.makeReady(it)
		}
	}
}

type readyItem struct {
	it  *item
	gen uint32
}

func (m *Machine) makeReady(it *item) {
	it.state = ready
	it.gen++
	m.ready.push(readyItem{it, it.gen})
}

// unready takes back what was made ready and not sent, so that it can be offered again in order.
func (l *lane) unready() {
	for _, it := range l.queue {
		if it.state == ready {
			it.state = waiting
			it.gen++
		}
	}
}

// enqueue adds an item to its lane.
func (m *Machine) enqueue(it *item) {
	l := it.lane
	l.queue = append(l.queue, it)
	if m.rules.Pipeline && !l.recover && l.slow == nil {
		m.makeReady(it)
		return
	}
	m.offer(l)
}

// leaveQueue takes a decided or dropped item out of its lane.
func (l *lane) leaveQueue(it *item) {
	if len(l.queue) > 0 && l.queue[0] == it {
		l.queue[0] = nil
		l.queue = l.queue[1:]
		return
	}
	if i := slices.Index(l.queue, it); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
}

// next goes on with a lane after one of its items was answered.
func (m *Machine) next(l *lane) {
	if l == nil || l.gone {
		return
	}
	if l.flying == 0 {
		l.recover, l.closing = false, false
	}
	m.offer(l)
	if l.releasing && l.still() {
		m.wantFollowers(l)
	}
	m.forget(l)
}

// still reports whether the lane's rows in the database are all that there is of its key: nothing of it is in memory, on
// its way, or decided and not yet settled.
func (l *lane) still() bool {
	return l.flying == 0 && len(l.queue) == 0 && l.unsettled == 0 && l.parking == 0 && l.slow == nil
}

// forget drops a lane without state.
func (m *Machine) forget(l *lane) {
	if l.flying == 0 && len(l.queue) == 0 && l.unsettled == 0 && !l.shut() && !l.gone {
		l.gone = true
		delete(m.lanes, l.key)
	}
}

// shutLane parks everything of a lane that is not in flight behind the item that was just parked or died. What is in
// flight (pipeline) follows when it is answered.
func (m *Machine) shutLane(l *lane) {
	l.unready()
	rest := slices.Clone(l.queue)
	for _, it := range rest {
		if it.state == waiting {
			m.stayBehind(it)
		}
	}
	l.releasing = false
	l.closing = l.flying > 0
}

// stayBehind parks an item of the log behind its key; an item that is a parked row already just leaves memory.
func (m *Machine) stayBehind(it *item) {
	it.lane.leaveQueue(it)
	m.uncount(it)
	if it.parked {
		it.state = dropped
		it.gen++
		it.part.parked--
		return
	}
	m.parkBehind(it)
}

func (m *Machine) wantFollowers(l *lane) {
	if l.part.leaving || m.stopping {
		l.releasing = false
		return
	}
	if !l.asked {
		l.asked = true
		m.follow = append(m.follow, l)
	}
}

func (m *Machine) askFollowers() {
	for m.asking == nil && len(m.follow) > 0 && !m.idle() {
		l := m.follow[0]
		m.follow = m.follow[1:]
		l.asked = false
		if l.gone || !l.releasing || !l.still() { // it asks again when it is
			continue
		}
		if l.part.leaving || m.stopping {
			l.releasing = false
			m.forget(l)
			continue
		}
		m.asking = l
		m.do(ReadFollowers{Key: l.key, Room: store.Room{
			Messages: max(1, m.rules.Messages/2), Bytes: max(1, m.rules.Bytes/2),
		}})
	}
}

func (m *Machine) followersDone(e FollowersDone) {
	l := m.asking
	m.asking = nil
	if e.Err != nil && m.broken(e.Err) {
		return
	}
	if l == nil || l.gone || !l.releasing { // its partition may have left, and come back
		return
	}
	switch {
	case e.Err != nil:
		// The head is due in the database: it comes again with the next Heads.
		l.releasing = false
	case len(e.Records) == 0, l.part.leaving, m.stopping, m.later(e.Records):
		l.releasing = false
	default:
		for i := range e.Records {
			m.enqueue(m.parkedItem(&e.Records[i], l.part, l))
		}
	}
	m.forget(l)
}

func (m *Machine) parkedItem(r *store.Parked, p *part, l *lane) *item {
	p.parked++
	return &item{
		rec: &r.Record, part: p, lane: l, place: r.Place, parked: true, attempts: r.Attempts, before: r.Before,
	}
}
