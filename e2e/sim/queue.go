package sim

import "time"

// event is something that will happen.
type event struct {
	at  time.Duration
	tie uint64 // drawn, so that what happens at the same time happens in any order
	of  *process
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.tie < o.tie }

// queue is the events to come, the next one first: a heap.
type queue []event

func (q *queue) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := *q
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].before(&h[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
