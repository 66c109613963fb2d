package memstore

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// parked is a message that left the fast path.
type parked struct {
	row                       *row
	place                     store.Place
	reason                    store.Reason
	attempts, before          int
	due                       time.Time // zero: it waits for others
	firstFailure, lastFailure time.Time
	code                      outbox.Code
	text                      string
	index                     int   // in part.due
	pause                     int64 // with forever: the pause that it waits for
}

// dead is a dead letter.
type dead struct {
	row                       *row
	place                     store.Place
	blocks                    bool
	code                      outbox.Code
	text                      string
	attempts                  int
	firstFailure, lastFailure time.Time
	relay                     string
}

// line is a key with exceptions. Its head is the first of rows; it alone of them has a due time, unless a blocking dead
// letter stands before them. Scheduled messages wait apart until they are due.
type line struct {
	rows      []*parked // in order of place
	scheduled []*parked
	blocking  int       // dead letters that block
	timed     []*parked // those of rows with a due time
}

func comparePlaces(a, b store.Place) int {
	return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Seq, b.Seq))
}

// after returns the index of the first row behind the place.
func (l *line) after(place store.Place) int {
	i, found := slices.BinarySearchFunc(l.rows, place, func(r *parked, p store.Place) int { return comparePlaces(r.place, p) })
	if found {
		i++
	}
	return i
}

// insert puts a row in its place; normalise must follow.
func (l *line) insert(r *parked) {
	if n := len(l.rows); n == 0 || comparePlaces(l.rows[n-1].place, r.place) < 0 {
		l.rows = append(l.rows, r)
	} else {
		l.rows = slices.Insert(l.rows, l.after(r.place), r)
	}
	if !r.due.IsZero() {
		l.timed = append(l.timed, r)
	}
}

// remove takes a row away; normalise must follow.
func (l *line) remove(r *parked) {
	l.timed = without(l.timed, r)
	if r.reason == store.ReasonScheduled {
		l.scheduled = without(l.scheduled, r)
		return
	}
	i := l.after(r.place) - 1
	if i == 0 {
		l.rows[0] = nil
		l.rows = l.rows[1:]
	} else {
		l.rows = slices.Delete(l.rows, i, i+1)
	}
}

func without(rows []*parked, r *parked) []*parked {
	if i := slices.Index(rows, r); i >= 0 {
		return slices.Delete(rows, i, i+1)
	}
	return rows
}

// line returns the line of a key, an empty one if it has none.
func (p *part) line(key string) *line {
	l := p.keys[key]
	if l == nil {
		l = &line{}
		p.keys[key] = l
	}
	return l
}

// normalise gives the head of a key its due time and takes it from all others; a key without exceptions is forgotten.
func (p *part) normalise(key string, now time.Time) {
	l := p.keys[key]
	if l == nil || key == "" {
		return
	}
	var head *parked
	if len(l.rows) > 0 && l.blocking == 0 {
		head = l.rows[0]
	}
	for _, r := range l.timed {
		if r != head {
			p.setDue(r, time.Time{})
		}
	}
	l.timed = l.timed[:0]
	if head != nil {
		l.timed = append(l.timed, head)
		if head.due.IsZero() {
			p.setDue(head, now)
		}
	}
	if len(l.rows) == 0 && len(l.scheduled) == 0 && l.blocking == 0 {
		delete(p.keys, key)
	}
}

// add parks a row. normalise must follow where it has a key.
func (k *sink) add(r *parked) {
	p := k.parts[r.row.Partition]
	k.parked[r.row.ID] = r
	r.index = -1
	if !r.due.IsZero() {
		heap.Push(&p.due, r)
	}
	if r.row.Key == "" {
		return
	}
	if r.reason == store.ReasonScheduled {
		l := p.line(r.row.Key)
		l.scheduled = append(l.scheduled, r)
		return
	}
	p.line(r.row.Key).insert(r)
}

// drop unparks a row. normalise must follow where it has a key.
func (k *sink) drop(r *parked) {
	p := k.parts[r.row.Partition]
	delete(k.parked, r.row.ID)
	p.setDue(r, time.Time{})
	if r.row.Key != "" {
		p.keys[r.row.Key].remove(r)
	}
}

// bury makes a dead letter. normalise must follow where it has a key.
func (k *sink) bury(d *dead) {
	k.dead[d.row.ID] = d
	if d.blocks {
		k.parts[d.row.Partition].line(d.row.Key).blocking++
	}
}

// exhume takes a dead letter away. normalise must follow where it has a key.
func (k *sink) exhume(d *dead) {
	delete(k.dead, d.row.ID)
	if d.blocks {
		k.parts[d.row.Partition].keys[d.row.Key].blocking--
	}
}

func (p *part) setDue(r *parked, due time.Time) {
	r.due = due
	switch {
	case r.index >= 0 && due.IsZero():
		heap.Remove(&p.due, r.index)
	case r.index >= 0:
		heap.Fix(&p.due, r.index)
	case !due.IsZero():
		heap.Push(&p.due, r)
	}
}

// dueHeap is parked rows with a due time, the soonest first.
type dueHeap []*parked

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return compareDue(h[i], h[j]) < 0 }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is heap.Interface's.
func (h *dueHeap) Push(x any) {
	r := x.(*parked)
	r.index = len(*h)
	*h = append(*h, r)
}

// Pop is heap.Interface's.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	r.index = -1
	return r
}

func compareDue(a, b *parked) int {
	return cmp.Or(a.due.Compare(b.due), comparePlaces(a.place, b.place))
}

// until calls yield for each row that is due, in no order, and returns when the next one will be: zero if none is.
func (h dueHeap) until(now time.Time, i int, yield func(*parked)) (next time.Time) {
	if i >= len(h) {
		return next
	}
	if h[i].due.After(now) {
		return h[i].due
	}
	yield(h[i])
	for child := 2*i + 1; child <= 2*i+2; child++ {
		if at := h.until(now, child, yield); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}
