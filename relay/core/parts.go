package core

import (
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// part is a partition that the relay holds.
type part struct {
	id       int
	epoch    int64
	reads    []*partRead   // in order; those with records that are not settled yet
	retained int           // their records
	held     int           // of them published, behind an undecided one
	since    time.Duration // when held became a quarter of the window; never: it is less
	parked   int           // parked messages of this partition in memory
	leaving  bool          // to be given back
	returned bool          // GiveBack is out
	past     bool          // of a pass: everything that was committed before it began was read
	tried    bool          // and what was due then was tried
	gone     bool
	dirty    bool   // in pending.parts
	lastIn   uint64 // number of the last settlement that has something of it
}

func (m *Machine) newPart(o store.Owned) *part {
	done := m.once.finished[o.Partition]
	p := &part{id: o.Partition, epoch: o.Epoch, since: never, past: done, tried: done}
	m.parts[p.id] = p
	i, _ := m.find(p.id)
	m.order = slices.Insert(m.order, i, p)
	return p
}

func (m *Machine) find(id int) (int, bool) {
	return slices.BinarySearchFunc(m.order, id, func(p *part, id int) int { return p.id - id })
}

// lanesOf are the partition's keys with state in memory, in the order of the keys.
func (m *Machine) lanesOf(p *part) (all []*lane) {
	for _, l := range m.lanes {
		if l.part == p {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b *lane) int { return strings.Compare(a.key.Key, b.key.Key) })
	return all
}

// partRead is what one read gave of one partition.
type partRead struct {
	no    uint64
	items []item
	n     int // the first n are decided, and everything of the reads before
	told  int // of them told to the store in a settlement
}

type itemState uint8

const (
	waiting itemState = iota
	ready             // in Machine.ready
	flying            // handed to the publisher, not answered
	decided           // published, or has a verdict
	dropped           // its partition is gone, or it was cut off
)

// item is one message in memory.
type item struct {
	rec   *outbox.Record
	part  *part
	lane  *lane     // nil without a key
	read  *partRead // nil: a parked row
	index int       // in read.items
	place store.Place

	state     itemState
	parked    bool // it is a parked row, or was made one by a verdict
	slow      bool // parked while in flight; its answer is still awaited
	counted   bool // in the window
	out       bool // published, and in no settlement yet
	gen       uint32
	attempts  int    // failed so far
	before    int    // of them outside the budget
	uncertain int    // unanswered in a row
	through   uint64 // Machine.accepted at the first of them
	ticket    uint64
	at        time.Duration  // when it was first sent, and not answered since
	v         *store.Verdict // of a message of the log that is not told yet
	shutting  bool           // v shuts the lane
}

func (it *item) size() int { return len(it.rec.Payload) }

// decide marks an item as having its outcome.
func (m *Machine) decide(it *item) {
	it.state = decided
	it.gen++
	if it.read == nil {
		it.part.parked--
		return
	}
	m.waiting--
	if it.counted {
		it.part.held++
	}
	if it.part.advance() {
		m.touch(it.part)
	}
}

// advance moves over what is decided, in the order of the reads and never past an undecided message.
func (p *part) advance() (moved bool) {
	for _, r := range p.reads {
		for r.n < len(r.items) && r.items[r.n].state == decided {
			if r.items[r.n].counted {
				p.held--
			}
			r.n++
			moved = true
		}
		if r.n < len(r.items) {
			return moved
		}
	}
	return moved
}

// touch notes that the partition has something to settle.
func (m *Machine) touch(p *part) {
	p.lastIn = m.pending.no
	if !p.dirty {
		p.dirty = true
		m.pending.parts = append(m.pending.parts, p)
	}
	m.pending.start(m.now)
}

// drop forgets a partition: it is another relay's now.
func (m *Machine) drop(id int) {
	p := m.parts[id]
	if p == nil {
		return
	}
	p.gone = true
	m.once.leased = false
	m.heads.moved(id) // another owner may have published them before it comes back
	m.epochs[id] = p.epoch
	delete(m.parts, id)
	if i, found := m.find(id); found {
		m.order = slices.Delete(m.order, i, i+1)
	}
	for _, r := range p.reads {
		m.retained.messages -= len(r.items) - r.told
		for i := r.told; i < len(r.items); i++ {
			it := &r.items[i]
			m.retained.bytes -= it.size()
			if it.state != decided {
				m.waiting--
			}
			m.uncount(it)
			it.state = dropped
			it.gen++
		}
	}
	for k, l := range m.lanes {
		if l.part != p {
			continue
		}
		for _, it := range l.queue {
			m.uncount(it)
			it.state = dropped
			it.gen++
		}
		l.gone = true
		delete(m.lanes, k)
	}
	for id, it := range m.loose {
		if it.part == p {
			m.uncount(it)
			it.state = dropped
			it.gen++
			delete(m.loose, id)
		}
	}
}

func (m *Machine) count(it *item) {
	if !it.counted {
		it.counted = true
		m.window.add(1, it.size())
	}
}

func (m *Machine) uncount(it *item) {
	if it.counted {
		it.counted = false
		m.window.add(-1, -it.size())
	}
}
