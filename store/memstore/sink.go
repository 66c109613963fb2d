package memstore

import (
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// sink is a destination: how far it has got in each partition, and its exceptions.
type sink struct {
	name      string
	selection outbox.Selection
	created   time.Time
	seen      time.Time
	skipped   map[outbox.ID]struct{} // what was there when it was made, before its start
	parts     []*part
	parked    map[outbox.ID]*parked
	dead      map[outbox.ID]*dead
	attempts  map[outbox.ID][]store.AttemptInfo
	positions map[outbox.ID]string
	discarded map[outbox.ID]struct{}
	cursors   map[outbox.ID]*cursor // by relay
	published int64                 // by relays that have left
	out       map[outbox.ID]time.Time
	minutes   map[time.Time]int64 // how many were published in each
	pauses    []store.Pause       // in order of store.ComparePauses
}

// cursor is the version of what a relay owns: each settlement replaces it, and so does whatever takes a partition from
// the relay.
type cursor struct {
	no        int64
	published int64
	settledAt time.Time
}

// part is one partition of a sink. What its cursor has not passed is unread, or in reads.
type part struct {
	id      int
	owner   *relay // nil: free
	epoch   int64
	freedAt time.Time
	unread  queue       // visible, and not handed over since the partition was claimed or loaded
	reads   []*partRead // handed over to the owner by reads that are not settled whole, in order
	fresh   int64       // rows above are fresh, the others late
	passed  int64       // the highest seq that was settled

	keys map[string]*line // keys with parked messages or blocking dead letters
	due  dueHeap
}

// partRead is what one read gave of one partition.
type partRead struct {
	read *read
	rows []*row
	n    int // the first n have an outcome
}

// read is one read of a session that is not settled whole.
type read struct {
	no   uint64
	open int // its parts that are not settled whole
}

// newSink makes a sink that begins where it is said: nothing before the first number that it wants was handed over.
func (db *DB) newSink(as store.Sink) *sink {
	k := &sink{
		name: as.Name, created: db.now(), skipped: map[outbox.ID]struct{}{}, parked: map[outbox.ID]*parked{}, dead: map[outbox.ID]*dead{}, attempts: map[outbox.ID][]store.AttemptInfo{},
		positions: map[outbox.ID]string{}, discarded: map[outbox.ID]struct{}{}, cursors: map[outbox.ID]*cursor{}, out: map[outbox.ID]time.Time{}, minutes: map[time.Time]int64{},
	}
	first := db.state.startsAt(as.Start)
	k.parts = make([]*part, db.config.Partitions)
	for i := range k.parts {
		k.parts[i] = &part{id: i, unread: slices.Clone(db.state.logs[i]), keys: map[string]*line{}}
		if p := k.parts[i]; first > 1 {
			for _, r := range p.unread.take(p.unread.upTo(first - 1)) {
				k.skipped[r.ID] = struct{}{}
			}
			p.fresh, p.passed = first-1, first-1
		}
	}
	i, _ := db.state.findSink(as.Name)
	db.state.sinks = slices.Insert(db.state.sinks, i, k)
	return k
}

// takes reports whether a committed message is any of the sink's business.
func (k *sink) takes(r *row) bool {
	_, skipped := k.skipped[r.ID]
	return !skipped && k.selection.Match(r.Topic) || k.parked[r.ID] != nil || k.dead[r.ID] != nil
}

// startsAt is the first number that a new sink wants.
func (s *state) startsAt(start store.Start) int64 {
	first := s.seq + 1
	switch {
	case start.Latest:
		return first
	case start.Since.IsZero():
		return 1
	}
	for _, log := range s.logs {
		for _, r := range log {
			if !r.CreatedAt.Before(start.Since) {
				first = min(first, r.Seq)
				break
			}
		}
	}
	return first
}

// restore makes what was handed over and not settled unread again. Settled is what stands before the first message of
// the partition without an outcome; after a read that is not settled whole, nothing is. A coarse cursor stands before
// the first read that is not settled whole in every partition; what has an outcome with the sink does not come again even so.
func (p *part) restore(k *sink, coarse bool) {
	var back []*row
	behind := coarse
	for _, r := range p.reads {
		if behind {
			back = append(back, slices.DeleteFunc(slices.Clone(r.rows[:r.n]), k.known)...)
		}
		back = append(back, r.rows[r.n:]...)
		behind = behind || r.n < len(r.rows)
		if r.n < len(r.rows) {
			r.read.open--
		}
	}
	p.reads = nil
	p.unread.merge(back)
	if len(back) > 0 {
		p.fresh = min(p.fresh, p.unread[0].Seq-1)
	}
}

// known reports whether a message is parked, dead or discarded.
func (k *sink) known(r *row) bool {
	_, discarded := k.discarded[r.ID]
	return discarded || k.parked[r.ID] != nil || k.dead[r.ID] != nil
}

// unsettled reports whether a committed row of the partition has no outcome yet.
func (p *part) unsettled(r *row) bool {
	if _, found := p.unread.find(r.Seq); found {
		return true
	}
	for _, read := range p.reads {
		if slices.Contains(read.rows[read.n:], r) {
			return true
		}
	}
	return false
}

// backlog is how many messages have no outcome yet.
func (k *sink) backlog(p *part) int {
	n := 0
	for _, r := range p.unread {
		if k.takes(r) {
			n++
		}
	}
	for _, r := range p.reads {
		n += len(r.rows) - r.n
	}
	return n
}
