package inflight

// Queue is a first-in-first-out list of messages; the zero value is empty. The mutex guards it.
type Queue struct {
	items []*Flight
	head  int
}

// Push adds one.
func (q *Queue) Push(f *Flight) { q.items = append(q.items, f) }

// Pop takes the first one that has no answer; nil: there is none.
func (q *Queue) Pop() *Flight {
	for q.head < len(q.items) {
		f := q.items[q.head]
		q.items[q.head] = nil
		if q.head++; q.head == len(q.items) {
			q.items, q.head = q.items[:0], 0
		}
		if !f.Answered() {
			return f
		}
	}
	return nil
}

// Empty reports whether there is nothing, answered or not.
func (q *Queue) Empty() bool { return q.head == len(q.items) }
