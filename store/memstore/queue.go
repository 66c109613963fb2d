package memstore

import (
	"cmp"
	"slices"
)

// queue is rows in order of seq.
type queue []*row

// add puts a row in its place, which is nearly always the end: only late commits go further to the front.
func (q *queue) add(r *row) {
	if n := len(*q); n == 0 || (*q)[n-1].Seq < r.Seq {
		*q = append(*q, r)
		return
	}
	i, _ := q.find(r.Seq)
	*q = slices.Insert(*q, i, r)
}

// take removes the first n rows and returns them.
func (q *queue) take(n int) []*row {
	taken := (*q)[:n:n]
	*q = (*q)[n:]
	return taken
}

// merge puts rows back, in any order.
func (q *queue) merge(rows []*row) {
	if len(rows) == 0 {
		return
	}
	all := make(queue, 0, len(rows)+len(*q))
	all = append(append(all, rows...), *q...)
	slices.SortFunc(all, func(a, b *row) int { return cmp.Compare(a.Seq, b.Seq) })
	*q = all
}

// find returns where the row with this seq is, or belongs.
func (q queue) find(seq int64) (int, bool) {
	return slices.BinarySearchFunc(q, seq, func(r *row, seq int64) int { return cmp.Compare(r.Seq, seq) })
}

// upTo counts the rows with a seq of at most this.
func (q queue) upTo(seq int64) int {
	if len(q) == 0 || q[0].Seq > seq {
		return 0
	}
	i, found := q.find(seq)
	if found {
		i++
	}
	return i
}
