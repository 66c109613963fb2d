package postgres

import (
	"github.com/onwardhq/onward/store"
)

// kind is how a read looks for messages.
type kind uint8

const (
	readShares kind = iota // late rows of all groups that are in no pass, fresh rows of some partitions
	readWindow             // whatever the snapshot did not see, while every partition is exhausted
	readPass               // the next page of one group's late pass
)

// request is a read before it is sent.
type request struct {
	kind   kind
	groups []*group
	slots  []*slot // of these groups, by partition
	group  []int   // of each slot: its place in groups
	seqs   []int64 // of each slot: L
	want   []int   // of each slot: fresh rows asked for
	room   []bool  // of each slot: fresh rows are welcome
	tops   []int64 // of each group: the largest L
	bound  int     // fresh rows in all
	mark   bool    // who asks wants to know what is past the mark
	first  bool    // some slots are not caught up: late rows may have their outcome already
}

// next plans a read, or returns nil where nothing is held. Partitions in a late pass get nothing fresh until it has ended;
// pages of passes and reads of the rest take turns.
func (l *ledger) next(room store.Room, page int) *request {
	all := l.sorted()
	var passing *group
	normal := false
	for _, s := range all {
		if s.group.pos.late == "" {
			normal = true
		} else if passing == nil {
			passing = s.group
		}
	}
	r := &request{bound: room.Messages}
	switch {
	case passing != nil && (!l.pass || !normal):
		r.kind = readPass
		l.pass = true
		r.include(all, func(s *slot) bool { return s.group == passing })
		return r
	case !normal:
		return nil
	}
	l.pass = false
	r.include(all, func(s *slot) bool { return s.group.pos.late == "" })
	r.welcome(room.Partitions)
	if r.exhausted() {
		r.kind = readWindow
		return r
	}
	l.share(r, min(room.Messages, page), max(1, page/32))
	return r
}

func (r *request) include(all []*slot, wanted func(*slot) bool) {
	place := make(map[*group]int)
	for _, s := range all {
		if !wanted(s) {
			continue
		}
		g, known := place[s.group]
		if !known {
			g = len(r.groups)
			place[s.group] = g
			r.groups = append(r.groups, s.group)
			r.tops = append(r.tops, s.seq)
		}
		r.tops[g] = max(r.tops[g], s.seq)
		r.slots = append(r.slots, s)
		r.group = append(r.group, g)
		r.seqs = append(r.seqs, s.seq)
		r.first = r.first || !s.caught
	}
	r.want = make([]int, len(r.slots))
	r.room = make([]bool, len(r.slots))
}

func (r *request) welcome(partitions []int) {
	in := make(map[int]bool, len(partitions))
	for _, p := range partitions {
		in[p] = true
	}
	for i, s := range r.slots {
		r.room[i] = in[s.part]
	}
}

// exhausted: one snapshot covers all, and nothing that it sees is left.
func (r *request) exhausted() bool {
	if len(r.groups) != 1 {
		return false
	}
	for _, s := range r.slots {
		if s.behind {
			return false
		}
	}
	return true
}

// share deals the room out to at most most partitions: those that gave all they were asked for last time first, then the
// others in turn. The first sort gets four times as much. Where nothing is known to wait, all partitions are asked at
// once: when each of them has said so of the same snapshot, reads are windows. Where many were not asked yet, as many as there is
// room for are asked for two rows each: whoever takes over 16,384 partitions knows after a few reads which have more.
func (l *ledger) share(r *request, messages, most int) {
	if r.sound(messages, most) {
		return
	}
	var chosen, rest []int
	n := len(r.slots)
	if !r.waiting() {
		for i := range r.slots {
			if r.room[i] {
				r.want[i] = max(1, messages/n)
			}
		}
		return
	}
	for k := range n {
		i := (l.turn + k) % n
		switch {
		case !r.room[i]:
		case r.slots[i].filled && len(chosen) < max(1, most/2):
			chosen = append(chosen, i)
		default:
			rest = append(rest, i)
		}
	}
	hot := len(chosen)
	chosen = append(chosen, rest[:min(len(rest), most-hot)]...)
	chosen = chosen[:min(len(chosen), messages)]
	if len(chosen) == 0 {
		return
	}
	l.turn = (chosen[len(chosen)-1] + 1) % n
	hot = min(hot, len(chosen))
	quiet := messages / len(chosen)
	if hot > 0 && hot < len(chosen) {
		quiet = max(1, quiet/4)
	}
	left := messages - quiet*(len(chosen)-hot)
	for k, i := range chosen {
		r.want[i] = quiet
		if k < hot {
			r.want[i] = max(1, left/hot)
		}
	}
}

// soundedFrom: fewer new partitions have their turns soon enough.
const soundedFrom = 256

// sound asks partitions that were never asked, where they are many.
func (r *request) sound(messages, most int) bool {
	few := max(most, soundedFrom)
	if len(r.slots) <= few {
		return false
	}
	var fresh []int
	for i, s := range r.slots {
		if r.room[i] && !s.asked && len(fresh) < messages/2 {
			fresh = append(fresh, i)
		}
	}
	if len(fresh) <= few {
		return false
	}
	for _, i := range fresh {
		r.want[i], r.slots[i].asked = 2, true
	}
	return true
}

func (r *request) waiting() bool {
	for i, s := range r.slots {
		if s.more && r.room[i] {
			return true
		}
	}
	return false
}

// answer is what a read found.
type answer struct {
	snapshot string
	top      int64     // the sequence's last value
	over     []bool    // of each group: more late rows than a page
	rows     [][]int64 // of each slot: the numbers of its rows, ascending
	sifted   []sifted  // of each slot, where the sink does not take everything; nil: it does
	cut      bool      // fresh rows were left out because of their bytes: who gave too few is not exhausted
	scanned  int64     // a page of a pass: the last number scanned
	ended    bool      // a page of a pass: there was less than a page left
}

// sifted is how far a partition was looked at for fresh rows: the last number, and how many rows.
type sifted struct {
	last int64
	n    int
}

// wentBack: the sequence is below what was read before, so the rows are of another numbering.
func (r *request) wentBack(top int64) bool {
	for _, seq := range r.tops {
		if top < seq {
			return true
		}
	}
	return false
}

// record notes what a read left behind, returns how many rows of each slot go on (a prefix of rows), and whether there
// may be more at once.
func (l *ledger) record(r *request, a *answer) (keep []int, more bool) {
	l.reads++
	keep = make([]int, len(r.slots))
	if r.kind == readPass {
		l.recordPage(r, a, keep)
		return keep, true
	}
	fresh := 0
	for i, s := range r.slots {
		if l.slots[s.part] != s || a.over[r.group[i]] {
			continue
		}
		late := 0
		for late < len(a.rows[i]) && a.rows[i][late] <= r.seqs[i] {
			late++
		}
		n := late + r.freshShare(i, len(a.rows[i])-late, fresh)
		fresh += n - late
		keep[i] = n
		s.caught, s.current = true, true
		seqs := a.rows[i][:n:n]
		l.take(s, seqs, late, a.snapshot, false)
		if n > late {
			s.seq = seqs[n-1]
		}
		found := len(a.rows[i]) - late
		if a.sifted != nil && n == len(a.rows[i]) && r.room[i] {
			s.seq = max(s.seq, a.sifted[i].last)
			found = max(found, a.sifted[i].n)
		}
		r.exhaust(i, a, n == len(a.rows[i]), found)
		more = more || s.behind && r.room[i] // also one that was not asked: it may have got some since it was
	}
	pass := l.merge(r, a)
	for _, s := range l.slots { // also one that this read was not for
		pass = pass || s.group.pos.late != ""
	}
	return keep, pass || more
}

// freshShare is how many of n fresh rows of slot i go on, when so many fresh ones went before.
func (r *request) freshShare(i, n, before int) int {
	if !r.room[i] {
		return 0
	}
	return max(0, min(n, r.bound-before))
}

// exhaust lets L jump to the sequence's last value where everything visible was read: rows of open transactions below it
// come as late ones.
func (r *request) exhaust(i int, a *answer, kept bool, found int) {
	s := r.slots[i]
	all := false
	switch r.kind {
	case readShares:
		all = found < r.want[i] && !a.cut
		if r.want[i] > 0 {
			s.filled = found == r.want[i]
		}
	case readWindow:
		all = true
		s.filled = false
	case readPass: // it reads late rows alone, and never comes here
	}
	all = all && kept
	s.behind = !all
	switch {
	case all:
		s.seq, s.more = max(s.seq, a.top), false
	case r.kind == readWindow || r.want[i] > 0:
		s.more = true
	}
}

// merge gives all groups that were read whole the new snapshot, and sends those that had too many late rows into a late
// pass. It says whether one begins.
func (l *ledger) merge(r *request, a *answer) (pass bool) {
	into := l.survivor(r, a)
	for i, g := range r.groups {
		switch {
		case a.over[i]:
			g.pos.late, g.pos.lateSeq, g.txids, g.ours = a.snapshot, 0, nil, true
			pass = true
		case g == into:
			g.pos = position{snapshot: a.snapshot}
		}
	}
	for i, s := range r.slots {
		switch {
		case a.over[r.group[i]]:
			s.behind, s.more = true, true // the pass moves the snapshot on without fresh rows
		case s.group != into:
			s.group, s.since = into, l.reads
		}
	}
	return pass
}

// widen: a window read found more than a page, so the next read deals out shares.
func (r *request) widen() {
	for _, s := range r.slots {
		s.behind, s.more = true, true
	}
}

// survivor is the group that the others are merged into: the row's, or the one with the most partitions.
func (l *ledger) survivor(r *request, a *answer) (into *group) {
	sizes := make([]int, len(r.groups))
	for _, g := range r.group {
		sizes[g]++
	}
	most := 0
	for i, g := range r.groups {
		switch {
		case a.over[i]:
		case g == l.row:
			return g
		case sizes[i] > most:
			into, most = g, sizes[i]
		}
	}
	return into
}

// recordPage notes a page of a late pass. All of its rows are late.
func (l *ledger) recordPage(r *request, a *answer, keep []int) {
	for i, s := range r.slots {
		if l.slots[s.part] != s {
			continue
		}
		n := len(a.rows[i])
		keep[i] = n
		s.caught = s.caught || a.ended
		s.current = s.current || a.ended && r.groups[0].ours
		l.take(s, a.rows[i], n, a.snapshot, true)
	}
	g := r.groups[0]
	if a.ended {
		g.pos = position{snapshot: g.pos.late}
		g.txids = nil
		return
	}
	g.pos.lateSeq = a.scanned
}
