package postgres

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/onwardhq/onward/store"
)

// The world of these tests: transactions that draw their id, write rows and commit in any order, and sessions that read
// them as the statements do, settle in part, give back, claim, and crash at any point.
type world struct {
	t     *testing.T
	rnd   *rand.Rand
	page  int
	parts int
	ended bool // nobody writes any more

	xid     uint64
	seq     int64
	open    map[uint64]*simTx
	clock   int
	rows    []*simRow
	snaps   map[string]simSnapshot
	durable map[int]*simDurable
	members []*simSession
}

type simTx struct{ rows []*simRow }

type simRow struct {
	tx        uint64
	seq       int64
	part      int
	written   int
	committed int // 0: not yet
	aborted   bool
	out       int // how often it was handed over
	settled   bool
	again     bool // may come again: a crash fell on it
}

type simSnapshot struct {
	xmax uint64
	xip  map[uint64]bool
}

func (s simSnapshot) sees(x uint64) bool { return x < s.xmax && !s.xip[x] }

type simDurable struct {
	owner  *simSession // nil: free
	cursor             // while not in the owner's row
}

// simSession is a session with the durable row that it last wrote.
type simSession struct {
	ledger *ledger
	row    map[int]cursor
	base   position
	flight []simPart          // handed over and not settled, in order
	gave   map[*simRow]uint64 // the read
}

type simPart struct {
	read uint64
	part int
	rows []*simRow
	n    int // settled
}

func newWorld(t *testing.T, seed int64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewSource(seed)), open: map[uint64]*simTx{}, snaps: map[string]simSnapshot{}, //nolint:gosec // seeded on purpose
		durable: map[int]*simDurable{}, xid: 10}
	w.page = 2 + w.rnd.Intn(6)
	w.parts = 1 + w.rnd.Intn(5)
	start := w.snapshot()
	for p := range w.parts {
		w.durable[p] = &simDurable{cursor: cursor{position: position{snapshot: start}}}
	}
	for range 1 + w.rnd.Intn(2) {
		w.members = append(w.members, w.newSession())
	}
	return w
}

func (w *world) newSession() *simSession {
	base := position{snapshot: w.snapshot()}
	return &simSession{ledger: newLedger(base), base: base, row: map[int]cursor{}, gave: map[*simRow]uint64{}}
}

func (w *world) snapshot() string {
	s := simSnapshot{xmax: w.xid, xip: map[uint64]bool{}}
	for x := range w.open {
		s.xip[x] = true
	}
	name := fmt.Sprintf("%d@%d", s.xmax, w.clock)
	w.snaps[name] = s
	return name
}

// write lets a transaction begin, write or end.
func (w *world) write() {
	w.clock++
	ids := make([]uint64, 0, len(w.open))
	for x := range w.open {
		ids = append(ids, x)
	}
	slices.Sort(ids)
	if len(ids) == 0 || len(ids) < 4 && w.rnd.Intn(3) == 0 {
		w.open[w.xid] = &simTx{}
		ids = []uint64{w.xid}
		w.xid++
	}
	x := ids[w.rnd.Intn(len(ids))]
	tx := w.open[x]
	switch n := w.rnd.Intn(10); {
	case n < 6:
		for range 1 + w.rnd.Intn(3)*w.rnd.Intn(6) {
			w.seq++
			r := &simRow{tx: x, seq: w.seq, part: w.rnd.Intn(w.parts), written: w.clock}
			tx.rows = append(tx.rows, r)
			w.rows = append(w.rows, r)
		}
	default:
		for _, r := range tx.rows {
			r.committed, r.aborted = w.clock, n == 9
		}
		delete(w.open, x)
	}
}

// find runs a request as the statement in queries/read.sql does.
func (w *world) find(r *request) *answer {
	now := w.snapshot()
	a := &answer{snapshot: now, top: max(w.seq, 1), over: make([]bool, len(r.groups)), rows: make([][]int64, len(r.slots))}
	if r.kind == readPass {
		w.findPage(r, a)
		return a
	}
	for g := range r.groups {
		s := w.snaps[r.groups[g].pos.snapshot]
		top := r.tops[g]
		if r.kind == readWindow {
			top = 1 << 60
		}
		byXid := map[uint64]int{}
		var cand []*simRow
		beyond := 0
		sorted := slices.Clone(w.rows)
		slices.SortStableFunc(sorted, func(a, b *simRow) int { return int(a.tx) - int(b.tx) })
		for _, row := range sorted {
			if !w.snaps[now].sees(row.tx) || row.aborted || row.seq > top {
				continue
			}
			switch {
			case s.xip[row.tx] && byXid[row.tx] <= w.page:
				byXid[row.tx]++
				cand = append(cand, row)
			case row.tx >= s.xmax && beyond <= w.page:
				beyond++
				cand = append(cand, row)
			}
		}
		a.over[g] = len(cand) > w.page
		for i, slot := range r.slots {
			if r.group[i] != g || a.over[g] {
				continue
			}
			for _, row := range cand {
				if row.part == slot.part && (r.kind == readWindow || row.seq <= r.seqs[i]) {
					a.rows[i] = append(a.rows[i], row.seq)
				}
			}
			fresh := 0
			for _, row := range w.rows {
				if r.kind == readShares && fresh < r.want[i] && row.part == slot.part && row.seq > r.seqs[i] &&
					w.snaps[now].sees(row.tx) && !row.aborted {
					fresh++
					a.rows[i] = append(a.rows[i], row.seq)
				}
			}
			slices.Sort(a.rows[i])
		}
	}
	return a
}

func (w *world) findPage(r *request, a *answer) {
	pos := r.groups[0].pos
	s, s2 := w.snaps[pos.snapshot], w.snaps[pos.late]
	scanned := 0
	for _, row := range w.rows {
		if scanned == w.page {
			break
		}
		if row.aborted || row.seq <= pos.lateSeq || row.seq > r.tops[0] || s.sees(row.tx) || !s2.sees(row.tx) {
			continue
		}
		scanned++
		a.scanned = row.seq
		for i, slot := range r.slots {
			if slot.part == row.part && row.seq <= r.seqs[i] {
				a.rows[i] = append(a.rows[i], row.seq)
			}
		}
	}
	a.ended = scanned < w.page
}

func (w *world) read(m *simSession) bool {
	room := store.Room{Messages: 1 + w.rnd.Intn(2*w.page)}
	for p := range w.parts {
		if w.rnd.Intn(8) > 0 {
			room.Partitions = append(room.Partitions, p)
		}
	}
	r := m.ledger.next(room, 32*w.page)
	if r == nil {
		return false
	}
	if !w.ended && w.rnd.Intn(4) == 0 {
		w.write() // between the plan and the statement
	}
	a := w.find(r)
	if r.kind == readWindow && a.over[0] {
		r.widen()
		return true
	}
	if w.rnd.Intn(6) == 0 {
		w.giveBack(m) // while the read is under way
	}
	if w.rnd.Intn(6) == 0 {
		w.claim(m)
	}
	keep, more := m.ledger.record(r, a)
	for i, s := range r.slots {
		rows := make([]*simRow, 0, keep[i])
		for _, seq := range a.rows[i][:keep[i]] {
			rows = append(rows, w.rows[seq-1])
		}
		w.deliver(m, s.part, rows)
	}
	return more
}

func (w *world) deliver(m *simSession, part int, rows []*simRow) {
	for _, r := range rows {
		w.clock++
		if r.out > 0 && !r.again {
			w.t.Fatalf("row %d handed over %d times", r.seq, r.out+1)
		}
		r.again = false
		m.gave[r] = m.ledger.reads
		r.out++
		if r.out > 1 {
			continue
		}
		for _, before := range w.rows {
			if before.part == r.part && !before.aborted && before.committed > 0 && before.committed < r.written && before.out == 0 {
				w.t.Fatalf("row %d handed over before row %d, which was committed before it was written", r.seq, before.seq)
			}
		}
	}
	if len(rows) > 0 {
		m.flight = append(m.flight, simPart{read: m.ledger.reads, part: part, rows: rows})
	}
}

// settle settles some of what is in flight, in order for each partition, and gives back.
func (w *world) settle(m *simSession, gone []int) {
	var done []store.Done
	stuck := map[int]bool{}
	now := make([]int, len(m.flight))
	for i, f := range m.flight {
		now[i] = f.n
		if stuck[f.part] {
			continue
		}
		n := f.n + w.rnd.Intn(len(f.rows)-f.n+1)
		if w.rnd.Intn(2) == 0 {
			n = len(f.rows)
		}
		stuck[f.part] = n < len(f.rows)
		if n > f.n {
			done = append(done, store.Done{Partition: f.part, Read: f.read, N: n})
		}
		now[i] = n
	}
	p := m.ledger.settle(done, gone)
	if w.rnd.Intn(5) == 0 {
		m.ledger.abort()
		return
	}
	if w.rnd.Intn(5) == 0 {
		w.claim(m) // while the settle is under way
	}
	m.ledger.commit(p)
	m.base, m.row = p.pos, map[int]cursor{}
	for i, s := range p.members {
		m.row[s.part] = cursor{position: p.pos, seq: p.seqs[i]}
	}
	for _, o := range p.own {
		d := w.durable[o.slot.part]
		d.cursor = o.cursor
		if o.gone {
			d.owner = nil
		}
	}
	w.forget(m, now, gone)
}

// forget drops what is settled, and what was never sent of the partitions that go: their next owner sends it.
func (w *world) forget(m *simSession, now, gone []int) {
	left := m.flight[:0]
	for i, f := range m.flight {
		f.n = now[i]
		for _, r := range f.rows[:f.n] {
			r.settled = true
		}
		switch {
		case slices.Contains(gone, f.part):
			for _, r := range f.rows[f.n:] {
				r.again = true
			}
		case f.n < len(f.rows):
			left = append(left, f)
		}
	}
	m.flight = left
}

func (w *world) giveBack(m *simSession) {
	var gone []int
	for part := range w.parts {
		if m.ledger.slots[part] != nil && w.rnd.Intn(3) == 0 {
			gone = append(gone, part)
		}
	}
	slices.Sort(gone)
	w.settle(m, gone)
}

func (w *world) claim(m *simSession) {
	var got []holding
	for part := range w.parts {
		if d := w.durable[part]; d.owner == nil && w.rnd.Intn(2) == 0 {
			d.owner = m
			got = append(got, holding{part: part, cursor: d.cursor})
		}
	}
	m.ledger.add(got)
}

// crash ends a session; another one, or itself after a reload, goes on from the durable cursors. What may come again is
// what was handed over in reads from the oldest one on that was not settled whole.
func (w *world) crash(i int, takeover bool) {
	m := w.members[i]
	oldest := never
	for _, f := range m.flight {
		oldest = min(oldest, f.read)
	}
	heir := w.newSession()
	heir.base = m.base
	var holdings []holding
	for part := range w.parts {
		d := w.durable[part]
		if d.owner != m {
			continue
		}
		c, member := m.row[part]
		if !member {
			c = d.cursor
		}
		if takeover {
			d.cursor, d.owner = c, nil
			continue
		}
		d.owner = heir
		holdings = append(holdings, holding{part: part, cursor: c, member: member})
	}
	if !takeover {
		heir.row = m.row
	}
	heir.ledger = newLedger(heir.base)
	heir.ledger.add(holdings)
	w.members[i] = heir
	for r, read := range m.gave {
		r.again = r.again || read >= oldest
	}
}

func (w *world) run(steps int) {
	for range steps {
		i := w.rnd.Intn(len(w.members))
		m := w.members[i]
		switch n := w.rnd.Intn(40); {
		case n < 16:
			w.write()
		case n < 26:
			w.read(m)
		case n < 34:
			w.settle(m, nil)
		case n < 37:
			w.claim(m)
		case n < 39:
			w.giveBack(m)
		default:
			w.crash(i, w.rnd.Intn(2) == 0)
		}
	}
	w.drain()
}

// drain ends all transactions and reads to the end: nothing may be left.
func (w *world) drain() {
	w.ended = true
	w.clock++
	for x, tx := range w.open {
		for _, r := range tx.rows {
			r.committed = w.clock
		}
		delete(w.open, x)
	}
	for n := 0; n < 500+20*len(w.rows) && !w.allSettled(); n++ {
		for _, m := range w.members {
			w.claim(m)
			w.read(m)
			w.settle(m, nil)
		}
	}
	for _, r := range w.rows {
		if !r.aborted && !r.settled {
			w.t.Fatalf("row %d of partition %d was handed over %d times and never settled: %s", r.seq, r.part, r.out, w.state())
		}
	}
	for _, m := range w.members {
		for _, s := range m.ledger.slots {
			if n := len(s.entries); n > len(m.flight) {
				w.t.Fatalf("%d entries kept for %d parts in flight", n, len(m.flight))
			}
		}
	}
}

func (w *world) allSettled() bool {
	return !slices.ContainsFunc(w.rows, func(r *simRow) bool { return !r.aborted && !r.settled })
}

// TestLedgerLosesNothing: whatever the transactions and the sessions do, every committed row is settled, handed over in order,
// and twice only after a crash, and then only what the oldest unsettled read or a later one gave.
func TestLedgerLosesNothing(t *testing.T) {
	t.Parallel()
	worlds := 1500
	if testing.Short() {
		worlds = 300
	}
	for seed := range worlds {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) { newWorld(t, int64(seed)).run(150) })
		if !ok {
			return
		}
	}
}

func (w *world) state() string {
	text := fmt.Sprintf("page %d, %d rows", w.page, len(w.rows))
	for i, m := range w.members {
		for _, s := range m.ledger.sorted() {
			text += fmt.Sprintf("\nsession %d partition %d: %+v seq %d behind %v", i, s.part, s.group.pos, s.seq, s.behind)
		}
	}
	return text
}
