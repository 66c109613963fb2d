package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

// Read returns the next messages: one statement, but for the beginning of a late pass, and for a window that turns out to
// hold more than a page.
func (s *Session) Read(ctx context.Context, room store.Room) (store.Page, error) {
	const op = "read"
	if err := s.usable(op); err != nil {
		return store.Page{}, err
	}
	if room.Bytes <= 0 || room.Bytes > s.member.PageBytes {
		room.Bytes = s.member.PageBytes
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	var awaited time.Duration
	for {
		s.mu.Lock()
		l := s.ledger
		r := l.next(room, s.member.Page)
		s.mu.Unlock()
		if r == nil {
			return store.Page{No: l.reads}, nil
		}
		r.mark = room.Mark
		found, durable, err := s.find(ctx, r, room)
		if err != nil {
			return store.Page{}, s.fail(op, "nothing was read", err)
		}
		if !durable { // as if it had not been read
			return store.Page{No: l.reads, More: true}, nil
		}
		if found.marked {
			awaited, room.Await = awaits, false
		}
		page, again, err := s.record(op, l, r, found)
		page.Awaited = awaited
		if err != nil || !again {
			return page, err
		}
	}
}

// find sends the read. durable: what was found may be published.
func (s *Session) find(ctx context.Context, r *request, room store.Room) (f *found, durable bool, err error) {
	if r.kind == readPass && r.groups[0].txids == nil {
		if err := s.draw(ctx, r); err != nil {
			return nil, false, err
		}
	}
	f = newFound(r, room.Bytes, s.takes != "" || s.leaves != "")
	f.page = s.member.Page
	name, args := s.question(r, room)
	positions, mark := s.store.publish.positions(), room.Await && s.store.listener.listens()
	var at safe
	var first opening
	if mark { // writers are asked to notify, and then it reads: what is committed behind the read finds the mark
		first = opening{sql: s.sql["mark"], args: []any{awaits.Milliseconds()}, dest: []any{&f.marked, nil}}
	}
	err = s.store.askAfter(ctx, first, func(b *pgx.Batch) {
		b.Queue(s.sql[name], args...)
		if positions != "" {
			b.Queue(s.sql[positions])
		}
	}, func(r pgx.BatchResults) error {
		if err := nextRows(r, f.scan); err != nil || positions == "" {
			return err
		}
		return at.scan(r.QueryRow())
	})
	if err != nil {
		return nil, false, err
	}
	durable, err = s.durable(ctx, f, at)
	return f, durable, err
}

// draw lists the transactions of a late pass.
func (s *Session) draw(ctx context.Context, r *request) error {
	g := r.groups[0]
	txids := []string{}
	err := s.trip(ctx, false, "draw", []any{g.pos.snapshot, g.pos.late, r.tops[0], s.floor}, one(&txids))
	g.txids = txids
	return err
}

// question is the statement of a request, with its arguments.
func (s *Session) question(r *request, room store.Room) (name string, args []any) {
	parts, seqs := make([]int32, len(r.slots)), r.seqs
	groups, want := make([]int32, len(r.slots)), make([]int32, len(r.slots))
	for i, slot := range r.slots {
		parts[i], groups[i], want[i] = int32(slot.part), int32(r.group[i]+1), int32(min(r.want[i], math.MaxInt32)) //nolint:gosec // small
	}
	switch r.kind {
	case readWindow:
		return "read_window", []any{s.sink, r.groups[0].pos.snapshot, parts, int64(room.Bytes), s.floor, s.takes, s.leaves}
	case readPass:
		return "read_page", []any{s.sink, r.groups[0].txids, r.groups[0].pos.lateSeq, r.tops[0], parts, seqs, int64(s.member.PageBytes), s.floor, r.first, s.takes, s.leaves}
	default:
		snapshots := make([]string, len(r.groups))
		for i, g := range r.groups {
			snapshots[i] = g.pos.snapshot
		}
		return "read_shares", []any{s.sink, snapshots, r.tops, parts, groups, seqs, want, int64(s.member.PageBytes), int64(room.Bytes), s.floor, r.first, s.takes, s.leaves}
	}
}

// record notes what was found in the ledger that the read was planned with. again: a window held more than a page.
func (s *Session) record(op string, l *ledger, r *request, f *found) (page store.Page, again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return page, false, errFenced(op)
	case s.ledger != l || s.void != nil:
		return page, false, errVoid(op, store.ErrReload.Detail, s.void)
	case f.token != s.token:
		return page, false, s.spoil(errVoid(op, "the server's incarnation has changed", nil))
	case r.wentBack(f.top):
		s.store.doubt()
		return page, false, s.spoil(errLineage(f.top, slices.Max(r.tops)))
	case r.kind == readWindow && f.over[0]:
		r.widen()
		return page, true, nil
	}
	keep, more := l.record(r, &f.answer)
	page = store.Page{No: l.reads, More: more}
	if s.mark == 0 {
		s.mark = f.top
	}
	if r.mark {
		page.Mark, page.Past = s.mark, l.past(s.mark)
	}
	for i, slot := range r.slots {
		if keep[i] > 0 {
			page.Parts = append(page.Parts, store.Part{
				Owned: store.Owned{Partition: slot.part, Epoch: slot.epoch}, Records: f.records[i][:keep[i]],
			})
		}
	}
	return page, false, nil
}

// found is an answer with its records.
type found struct {
	answer
	token   string
	marked  bool  // writers were asked to notify
	wal     int64 // how far the server's log had got
	r       *request
	bytes   int // most of fresh payloads
	page    int
	place   map[int32]int // of each partition in the request
	records [][]store.Record
}

func newFound(r *request, bytes int, sifts bool) *found {
	f := &found{r: r, bytes: bytes, place: make(map[int32]int, len(r.slots)), records: make([][]store.Record, len(r.slots))}
	f.over, f.rows = make([]bool, len(r.groups)), make([][]int64, len(r.slots))
	if sifts && r.kind == readShares {
		f.sifted = make([]sifted, len(r.slots))
	}
	for i, s := range r.slots {
		f.place[int32(s.part)] = i //nolint:gosec // at most 16,384
	}
	return f
}

// scan takes the rows of a read: the first says what the read was.
func (f *found) scan(rows pgx.Rows) error {
	var d decoder
	for rows.Next() {
		d.row(rows)
		if d.raw[0] != nil {
			f.headed(&d)
			continue
		}
		if d.raw[3] != nil {
			f.passedOver(&d)
			continue
		}
		var r store.Record
		d.record(headColumns, &r.Record)
		r.Ahead, r.Blocked = d.bool(headColumns+recordColumns), d.bool(headColumns+recordColumns+1)
		if d.err != nil {
			return d.err
		}
		i, known := f.place[int32(r.Partition)] //nolint:gosec // at most 16,384
		if !known {
			return fmt.Errorf("the read gave partition %d, which it was not asked for", r.Partition)
		}
		f.records[i] = append(f.records[i], r)
	}
	if err := errors.Join(d.err, rows.Err()); err != nil {
		return err
	}
	for _, records := range f.records {
		slices.SortFunc(records, func(a, b store.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	if f.r.kind == readShares {
		f.cutBytes()
	}
	for i, records := range f.records {
		f.rows[i] = make([]int64, len(records))
		for k := range records {
			f.rows[i][k] = records[k].Seq
		}
	}
	return nil
}

// cutBytes leaves out the last fresh row where the fresh ones are too large together: the statement sends one too many.
func (f *found) cutBytes() {
	last, total, fresh := -1, 0, 0
	for i, records := range f.records {
		for k := range records {
			if records[k].Seq > f.r.seqs[i] {
				total += len(records[k].Payload)
				fresh++
			}
		}
		if n := len(records); n > 0 && records[n-1].Seq > f.r.seqs[i] && (last < 0 || records[n-1].Seq > f.lastSeq(last)) {
			last = i
		}
	}
	if f.cut = total > f.bytes; f.cut && fresh > 1 {
		f.records[last] = f.records[last][:len(f.records[last])-1]
		if f.sifted != nil {
			f.sifted[last] = sifted{} // what lies behind the row that was left out was not passed
		}
	}
}

// passedOver takes how far a partition was looked at, whatever of it the sink takes.
func (f *found) passedOver(d *decoder) {
	last, what := d.int(1), d.ints(3)
	if d.err != nil {
		return
	}
	if i, known := f.place[int32(what[0])]; known { //nolint:gosec // a partition
		f.sifted[i] = sifted{last: last, n: int(what[1])}
	}
}

func (f *found) lastSeq(i int) int64 { return f.records[i][len(f.records[i])-1].Seq }

// headed takes the first row.
func (f *found) headed(d *decoder) {
	f.snapshot, f.top = string(d.raw[0]), d.int(1)
	f.token, f.wal = tokenAndWAL(string(d.raw[2]))
	extra := d.ints(3)
	if d.err != nil {
		return
	}
	if f.r.kind == readPass {
		scanned, taken, all := extra[0], extra[1], extra[2]
		f.scanned = max(scanned, f.r.groups[0].pos.lateSeq)
		f.ended = taken == all && all < int64(f.page)
		return
	}
	for _, no := range extra {
		f.over[no-1] = true
	}
}
