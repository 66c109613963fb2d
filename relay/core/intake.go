package core

import (
	"time"

	"github.com/onwardhq/onward/store"
)

// reading paces the reads: without pause while there is something, with growing intervals while there is not.
type reading struct {
	hints
	out      bool
	at       time.Duration
	interval time.Duration
	guards   []*lane // shut until the read that is out has come
}

// asking paces Heads.
type asking struct {
	out   bool
	at    time.Duration
	asked time.Duration // when the question that is out was asked
	of    []*part       // what it asks for
	watch time.Duration // when to ask what is paused, while no heads are wanted
	bare  bool          // the question that is out asks for that alone
	stale map[any]bool  // keys, ids and partitions whose rows changed while the question was out: its answer is older
}

func (a *asking) moved(what any) {
	if a.out {
		if a.stale == nil {
			a.stale = map[any]bool{}
		}
		a.stale[what] = true
	}
}

// Beat is how often a machine asks what is due and what is paused: others requeue, discard and pause, which is acted on within a
// second. It does so whenever its clock is at a multiple of it: machines whose clocks began together ask together.
const Beat = 500 * time.Millisecond

const (
	headsSoon   = 20 * time.Millisecond // after a settlement that moved heads
	headsAtOnce = 512                   // most due heads of one question
)

// readable reports whether a read is wanted at all.
func (m *Machine) readable() bool {
	return !m.reading.out && !m.stopping && m.unread() &&
		m.waiting < m.rules.Page && m.retained.messages < m.retainedMost() && m.retained.bytes < 2*m.rules.PageBytes
}

func (m *Machine) retainedMost() int { return 4*m.rules.Page + m.rules.Messages }

func (m *Machine) read() {
	if !m.readable() || m.now < m.reading.at {
		return
	}
	room := store.Room{
		Mark:     m.rules.Once,
		Messages: min(m.rules.Page, m.retainedMost()-m.retained.messages),
		Bytes:    min(m.rules.PageBytes, 2*m.rules.PageBytes-m.retained.bytes),
	}
	for _, p := range m.order {
		if !p.leaving && !p.past && p.retained < m.rules.Page {
			room.Partitions = append(room.Partitions, p.id)
		}
	}
	room.Await = m.wantsHints()
	m.reading.out = true
	m.do(Read{Room: room})
}

func (m *Machine) readDone(e ReadDone) {
	m.reading.out = false
	if e.Err != nil {
		if !m.broken(e.Err) {
			m.pace(false)
		}
		return
	}
	m.promised(e.Page.Awaited)
	m.pace(m.takePage(&e.Page) || e.Page.More)
	m.takePast(&e.Page)
	guards := m.reading.guards
	m.reading.guards = nil
	for _, l := range guards {
		l.guard = false
		m.next(l)
	}
}

func (m *Machine) pace(more bool) {
	r := &m.reading
	woken := r.heeded
	r.heeded, r.empty = false, !more
	switch {
	case more:
		r.at, r.interval = m.now, m.noteFound(woken)
	case r.missed: // a hint that came while the read was out is of what may lie behind it
		m.heed()
	case woken:
		m.misled()
	default:
		r.interval = min(r.interval, m.sleepMost())
		r.at = m.now + r.interval
		r.interval = min(2*r.interval, m.sleepMost())
	}
	r.missed = false
}

// takePage takes the records of each partition in their order, and the partitions in turn: the first of each, then the second.
// So those that were committed late, which come first in their partition, go out before the rest of all others: until
// they are settled, the store may hold everything of the page for unread after a crash.
func (m *Machine) takePage(page *store.Page) (found bool) {
	reads, most := make([]*partRead, len(page.Parts)), 0
	for i := range page.Parts {
		var some bool
		reads[i], some = m.takePart(page.No, &page.Parts[i])
		found = found || some
		if reads[i] != nil {
			most = max(most, len(reads[i].items))
		}
	}
	for k := range most {
		for i, r := range reads {
			if r != nil && k < len(r.items) {
				m.takeRecord(&r.items[k], &page.Parts[i].Records[k])
			}
		}
	}
	return found
}

// takePart notes the records of one partition of a page. some: it has any. nil: they are not taken.
func (m *Machine) takePart(no uint64, sp *store.Part) (r *partRead, some bool) {
	p := m.owned(sp)
	if p == nil || len(sp.Records) == 0 {
		return nil, false
	}
	if p.leaving || m.stopping {
		return nil, true // it stays unread for the next owner: nothing of this read will be settled
	}
	r = &partRead{no: no, items: make([]item, len(sp.Records))}
	p.reads = append(p.reads, r)
	p.retained += len(r.items)
	m.counters.Read += len(r.items)
	m.waiting += len(r.items)
	for i := range r.items {
		rec := &sp.Records[i]
		r.items[i] = item{rec: &rec.Record, part: p, read: r, index: i, place: store.Place{Order: rec.Seq, Seq: rec.Seq}}
		m.retained.add(1, len(rec.Payload))
	}
	return r, true
}

// owned finds the partition of a part. The session may have claimed it, or lost it, while the read was out: its epoch
// tells.
func (m *Machine) owned(sp *store.Part) *part {
	p := m.parts[sp.Partition]
	if p != nil && p.epoch < sp.Epoch {
		m.drop(p.id)
		p = nil
	}
	if p == nil && sp.Epoch > m.epochs[sp.Partition] {
		p = m.newPart(sp.Owned)
	}
	if p == nil || p.epoch != sp.Epoch {
		return nil
	}
	return p
}

func (m *Machine) takeRecord(it *item, rec *store.Record) {
	switch {
	case rec.Ahead:
		m.schedule(it)
	case rec.Key == "":
		m.makeReady(it)
	default:
		it.lane = m.lane(it.part, rec.Key)
		if rec.Blocked || it.lane.shut() {
			m.parkBehind(it)
		} else {
			m.enqueue(it)
		}
	}
}

// idle reports that nothing can be published now, so that there is no point in fetching parked messages.
func (m *Machine) idle() bool {
	return m.breaker.state == breakerOpen || m.settleBad > 0 || m.delayed > m.now || m.pauses.stopped()
}

// askable reports whether Heads is wanted: also while nothing can be published, for what is paused meanwhile must hold when
// something can.
func (m *Machine) askable() bool {
	return !m.heads.out && !m.stopping && len(m.parts) > 0
}

func (m *Machine) askHeads() {
	if !m.askable() || m.now < m.headsAt() {
		return
	}
	e := ReadHeads{Max: headsAtOnce}
	asked := m.untried()
	for _, p := range asked {
		e.Partitions = append(e.Partitions, p.id)
	}
	if m.heads.bare = len(asked) == 0 || m.watching(); m.heads.bare {
		e = ReadHeads{}
	}
	m.heads.watch = m.beat()
	if len(asked) == 0 {
		m.heads.at = m.beat()
	}
	m.heads.out, m.heads.asked, m.heads.of = true, m.now, asked
	m.do(e)
}

// beat is when the next Beat is.
func (m *Machine) beat() time.Duration { return m.now.Truncate(Beat) + Beat }

// headsAt is when to ask for heads, or for what is paused alone.
func (m *Machine) headsAt() time.Duration {
	if m.watching() {
		return m.heads.watch
	}
	return m.heads.at
}

// watching: nothing can be published, and so no heads are wanted. A pass wants to know what was due even so.
func (m *Machine) watching() bool { return m.idle() && !m.rules.Once }

func (m *Machine) headsDone(e HeadsDone) {
	stale, asked, bare, at := m.heads.stale, m.heads.of, m.heads.bare, m.heads.at
	m.heads = asking{at: m.beat(), watch: m.beat(), asked: m.heads.asked}
	if bare {
		m.heads.at = at
	}
	if e.Err != nil {
		m.broken(e.Err)
		return
	}
	m.pauses.take(e.Heads.Pauses)
	if bare {
		return
	}
	if e.Heads.Next > 0 {
		m.heads.at = min(m.beat(), m.now+max(e.Heads.Next, m.rules.PollMin))
	}
	if e.Heads.More {
		m.heads.at = m.now + m.rules.PollMin
	}
	if m.rules.Once {
		m.takeTried(asked, &e.Heads)
	}
	for i := range e.Heads.Due {
		h := &e.Heads.Due[i]
		if m.rules.Once && !m.wasDue(h) {
			continue
		}
		if stale[h.ID] || stale[h.Partition] || stale[store.Key{Partition: h.Partition, Key: h.Key}] {
			m.heads.at = m.now
			continue
		}
		m.takeHead(h)
	}
}

// takeHead starts to release a parked message. One whose key is in use, or that is in memory already, comes again.
func (m *Machine) takeHead(r *store.Parked) {
	p := m.parts[r.Partition]
	if p == nil || p.leaving {
		return
	}
	if r.Key == "" {
		if m.loose[r.ID] == nil {
			it := m.parkedItem(r, p, nil)
			m.loose[r.ID] = it
			m.makeReady(it)
		}
		return
	}
	if m.lanes[store.Key{Partition: p.id, Key: r.Key}] != nil {
		return
	}
	l := m.lane(p, r.Key)
	l.releasing = true
	m.enqueue(m.parkedItem(r, p, l))
}
