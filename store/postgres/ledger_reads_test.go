package postgres

import (
	"testing"

	"github.com/onwardhq/onward/store"
)

// Whoever takes very many partitions over has asked each of them, and read what waits in some, after a few reads: not after as
// many as there are shares of the room, for the last of them would wait so long. (Measured on the server:
// TestOneRelayHoldsManyPartitions.)
func TestManyNewPartitionsAreReadInAFewReads(t *testing.T) {
	t.Parallel()
	const partitions, page, each = 16384, 2048, 3
	l := newLedger(position{snapshot: "1:1:"})
	var taken []holding
	room := store.Room{Messages: page}
	waiting := map[int]int{} // rows of a partition
	for p := range partitions {
		taken = append(taken, holding{part: p, epoch: 1, cursor: cursor{position: position{snapshot: "1:1:"}}, member: true})
		room.Partitions = append(room.Partitions, p)
		if p%25 == 0 {
			waiting[p] = each
		}
	}
	l.add(taken)
	all, reads := each*len(waiting), 0
	left := all
	for ; left > 0; reads++ {
		if reads > partitions/page*8 {
			t.Fatalf("%d rows of %d are unread after %d reads", left, all, reads)
		}
		r := l.next(room, page)
		if r.kind != readShares {
			t.Fatalf("read %d is of kind %d, and %d rows wait", reads, r.kind, left)
		}
		a := &answer{snapshot: "9:9:", top: each, over: make([]bool, len(r.groups)), rows: make([][]int64, len(r.slots))}
		asked := 0
		for i, s := range r.slots {
			asked += r.want[i]
			for n := range min(r.want[i], waiting[s.part]) {
				a.rows[i] = append(a.rows[i], int64(each-waiting[s.part]+n+1))
			}
		}
		if asked > page {
			t.Fatalf("read %d asks for %d rows, more than a page", reads, asked)
		}
		keep, _ := l.record(r, a)
		for i, s := range r.slots {
			waiting[s.part] -= keep[i]
			left -= keep[i]
		}
	}
	t.Logf("%d reads", reads)
}
