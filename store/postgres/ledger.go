package postgres

import (
	"maps"
	"slices"

	"github.com/onwardhq/onward/store"
)

// position is how far a snapshot cursor has got, but for each partition's own seq.
//
// Without a late pass: every row with seq <= L that snapshot sees has been handed over, and no row above L. Within one,
// also: every row with seq <= min(lateSeq, L) that late sees.
type position struct {
	snapshot string // S
	late     string // S'; empty: no late pass
	lateSeq  int64  // l: how far the pass has scanned
}

// cursor is the position of one partition: its L is seq.
type cursor struct {
	position
	seq int64
}

// group is what partitions of equal position share. One read moves all of its partitions to the next position, so groups
// only ever merge.
type group struct {
	pos   position
	ours  bool     // its late pass began in this session
	txids []string // the late transactions of its pass; nil: not drawn up yet
}

// entry is a read that gave records of a partition and is not settled yet.
type entry struct {
	read      uint64
	seqs      []int64 // ascending: late ones first
	late      int     // how many of them are late
	done      int     // settled
	next      int     // settled once the settlement at hand has succeeded
	before    position
	beforeSeq int64
	after     string // the read's snapshot
	page      bool   // of a late pass: all of them are late, and before.lateSeq may be refined
}

// slot is a partition that the session holds.
type slot struct {
	part  int
	epoch int64
	group *group
	// seq is L as the reads issued have left it. behind: there may be rows above it that the group's snapshot sees.
	seq    int64
	behind bool
	asked  bool // for rows above it, since the slot was taken in
	more   bool // it may have rows that wait: it was not read to its end since it last gave all it was asked for
	filled bool // gave all that it was asked for last
	// caught: the late rows of the cursor that it was loaded with have come. Until then its parked rows do not go out: the
	// read would not know them again, and they would come twice.
	caught bool
	// current: a read of this session has given all up to seq that had been committed when the session began.
	current bool
	// since is the read from which on the slot shares its group's positions.
	since   uint64
	entries []*entry
	// member: the cursor stands in the row of outbox_cursors. Otherwise in outbox_partitions, last written as durable.
	member  bool
	durable cursor
}

// ledger is the memory of a session: what its reads have left behind, and what of it is settled. It is pure; Session
// guards it.
type ledger struct {
	slots map[int]*slot
	order []*slot  // by partition; nil when it is to be made again
	row   *group   // whose positions the row of outbox_cursors follows; nil: none yet
	base  position // of the row as it was loaded
	reads uint64   // the last one
	turn  int      // where the next share-out of fresh rows begins
	pass  bool     // the last read was a page of a late pass
}

func newLedger(base position) *ledger { return &ledger{slots: make(map[int]*slot), base: base} }

// holding is a partition as the database says it is held.
type holding struct {
	part   int
	epoch  int64
	cursor cursor
	member bool // the cursor stands in the row of outbox_cursors
}

// add takes in partitions. They share groups among themselves only: a read that is under way moves the groups that it
// was planned for, and what came meanwhile was not part of it.
func (l *ledger) add(holdings []holding) {
	l.order = nil
	groups := make(map[position]*group)
	for _, h := range holdings {
		g := groups[h.cursor.position]
		if g == nil {
			g = &group{pos: h.cursor.position}
			groups[h.cursor.position] = g
		}
		if h.member {
			l.row = g
		}
		l.slots[h.part] = &slot{
			part: h.part, epoch: h.epoch, group: g, seq: h.cursor.seq, behind: true, more: true, since: l.reads,
			member: h.member, durable: h.cursor,
		}
	}
}

// caughtUp lists those of the partitions whose parked rows may go out. all: none was left out.
func (l *ledger) caughtUp(partitions []int) (parts []int32, all bool) {
	for _, p := range partitions {
		if s := l.slots[p]; s != nil && s.caught {
			parts = append(parts, int32(p)) //nolint:gosec // at most 16,384
		}
	}
	return parts, len(parts) == len(partitions)
}

// past lists the partitions of which all that was committed before the session has been handed over; its numbers are not
// above the mark.
func (l *ledger) past(mark int64) (all []store.Owned) {
	for _, s := range l.sorted() {
		if s.current && s.seq >= mark {
			all = append(all, store.Owned{Partition: s.part, Epoch: s.epoch})
		}
	}
	return all
}

// owned lists what is held, by partition.
func (l *ledger) owned() []store.Owned {
	all := make([]store.Owned, 0, len(l.slots))
	for _, s := range l.sorted() {
		all = append(all, store.Owned{Partition: s.part, Epoch: s.epoch})
	}
	return all
}

// sorted is all that is held, by partition. Nobody changes what it returns: each read and each settle goes through it.
func (l *ledger) sorted() []*slot {
	if l.order == nil {
		l.order = slices.SortedFunc(maps.Values(l.slots), func(a, b *slot) int { return a.part - b.part })
	}
	return l.order
}

// take notes records that a read gave of a partition.
func (l *ledger) take(s *slot, seqs []int64, late int, after string, page bool) {
	if len(seqs) > 0 {
		s.entries = append(s.entries, &entry{
			read: l.reads, seqs: seqs, late: late, before: s.group.pos, beforeSeq: s.seq,
			after: after, page: page,
		})
	}
}

// blocked is the first entry whose late records are not settled: the snapshot stands before it.
func (s *slot) blocked() *entry {
	for _, e := range s.entries {
		if e.next < e.late {
			return e
		}
	}
	return nil
}

const never = ^uint64(0)

func (s *slot) blockedAt() uint64 {
	if e := s.blocked(); e != nil {
		return e.read
	}
	return never
}

// settledSeq is L as far as everything up to it is settled.
func (s *slot) settledSeq() int64 {
	for _, e := range s.entries {
		switch {
		case e.next == len(e.seqs):
			continue
		case e.next > e.late:
			return e.seqs[e.next-1]
		default:
			return e.beforeSeq
		}
	}
	return s.seq
}

// settledPosition is where the snapshot stands by this partition alone.
func (s *slot) settledPosition() position {
	e := s.blocked()
	if e == nil {
		return s.group.pos
	}
	if e.page || e.next == 0 {
		return e.position()
	}
	// In the middle of late records that came with a read: a late pass says exactly how far, for one partition.
	return position{snapshot: e.before.snapshot, late: e.after, lateSeq: e.seqs[e.next-1]}
}

// position is where the entry leaves the snapshot of all partitions while its late records are not settled: before the
// read, or within the page of a late pass before its first unsettled record.
func (e *entry) position() position {
	pos := e.before
	if e.page {
		pos.lateSeq = max(pos.lateSeq, e.seqs[e.next]-1)
	}
	return pos
}

// maxOutstanding is how many reads may be issued while one partition's late records hold up the snapshot of the row;
// then that partition gets a cursor of its own. It bounds what comes again after a crash.
const maxOutstanding = 4

// ownCursor is a cursor that a settle writes to outbox_partitions.
type ownCursor struct {
	slot *slot
	cursor
	gone bool // given back
}

// plan is what one settle writes.
type plan struct {
	pos     position
	members []*slot // by partition
	seqs    []int64 // of the members
	own     []ownCursor
}

// settle plans a settle: done is what it settles, gone what it gives back. Exactly one of commit and abort follows
// before the next plan; reads and claims may come between.
func (l *ledger) settle(done []store.Done, gone []int) *plan {
	for _, d := range done {
		if s := l.slots[d.Partition]; s != nil {
			s.settle(d)
		}
	}
	leaving := make(map[int]bool, len(gone))
	for _, part := range gone {
		leaving[part] = true
	}
	all := l.sorted()
	p := &plan{seqs: []int64{}}
	member := l.elect(all, leaving)
	pos, found := position{}, false
	for _, s := range all {
		if member[s.part] {
			p.members = append(p.members, s)
			p.seqs = append(p.seqs, s.settledSeq())
			continue
		}
		c := cursor{position: s.settledPosition(), seq: s.settledSeq()}
		if leaving[s.part] || s.member || c != s.durable {
			p.own = append(p.own, ownCursor{slot: s, cursor: c, gone: leaving[s.part]})
		}
	}
	first := never
	for _, s := range p.members {
		first = min(first, s.blockedAt())
	}
	for _, s := range p.members {
		e := s.blocked()
		if e == nil || e.read != first {
			continue
		}
		if at := e.position(); !found || at.lateSeq < pos.lateSeq {
			pos, found = at, true
		}
	}
	switch {
	case found:
		p.pos = pos
	case l.row != nil:
		p.pos = l.row.pos
	default:
		p.pos = l.base
	}
	return p
}

func (s *slot) settle(d store.Done) {
	for _, e := range s.entries {
		if e.read == d.Read {
			e.next = max(e.next, min(d.N, len(e.seqs)))
			return
		}
	}
}

// unwritten reports whether a settle without outcomes would write anything new.
func (l *ledger) unwritten(row position) bool {
	if l.row != nil && l.row.pos != row {
		return true
	}
	for _, s := range l.slots {
		if !s.member && (cursor{position: s.settledPosition(), seq: s.settledSeq()}) != s.durable {
			return true
		}
	}
	return false
}

// elect says which partitions stand in the row: the members, but for those that leave or hold up its snapshot for too
// long, and those that have come to share its positions.
func (l *ledger) elect(all []*slot, leaving map[int]bool) map[int]bool {
	var stay, others []*slot
	members := false
	for _, s := range all {
		members = members || s.member
		switch {
		case leaving[s.part]:
		case s.member:
			stay = append(stay, s)
		default:
			others = append(others, s)
		}
	}
	stay = l.dropHoldups(stay)
	first := never
	if !members { // and not merely none that stays: the settle may fail
		l.row, first = bestGroup(others)
	}
	for _, s := range stay {
		first = min(first, s.blockedAt())
	}
	member := make(map[int]bool, len(stay)+len(others))
	for _, s := range stay {
		member[s.part] = true
	}
	for _, s := range others {
		if s.group == l.row && s.since < first && s.blockedAt() >= first {
			member[s.part] = true
		}
	}
	return member
}

// dropHoldups takes out the members that hold up the snapshot for the others.
func (l *ledger) dropHoldups(members []*slot) []*slot {
	for {
		first, last := never, uint64(0)
		for _, s := range members {
			at := s.blockedAt()
			first, last = min(first, at), max(last, at)
		}
		if first == last || first == never || l.reads-first < maxOutstanding {
			return members
		}
		members = slices.DeleteFunc(members, func(s *slot) bool { return s.blockedAt() == first })
	}
}

// bestGroup chooses the positions that a row without members follows from now on: those of the group with the most
// partitions that could stand in it, and the read up to which they are settled.
func bestGroup(slots []*slot) (best *group, first uint64) {
	first = never
	sizes := make(map[*group]int)
	for _, s := range slots {
		if s.since < s.blockedAt() {
			sizes[s.group]++
		}
	}
	for _, s := range slots { // in their order, not the map's: the same every time
		if n := sizes[s.group]; n > 0 && (best == nil || n > sizes[best]) {
			best = s.group
		}
	}
	newest := uint64(0)
	for _, s := range slots {
		if at := s.blockedAt(); s.group == best && s.since < at {
			newest = max(newest, at)
		}
	}
	if newest > 0 {
		first = newest
	}
	return best, first
}

// commit: the settle has succeeded.
func (l *ledger) commit(p *plan) {
	for _, o := range p.own {
		if o.gone {
			delete(l.slots, o.slot.part)
			l.order = nil
			continue
		}
		o.slot.member, o.slot.durable = false, o.cursor
	}
	for _, s := range p.members {
		s.member = true
	}
	for _, s := range l.slots {
		for _, e := range s.entries {
			e.done = e.next
		}
		for len(s.entries) > 0 && s.entries[0].done == len(s.entries[0].seqs) {
			s.entries = s.entries[1:]
		}
	}
}

// abort: nothing of the settle was done.
func (l *ledger) abort() {
	for _, s := range l.slots {
		for _, e := range s.entries {
			e.next = e.done
		}
	}
}
