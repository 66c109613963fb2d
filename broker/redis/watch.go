package redis

import (
	"context"
	"time"
)

// How often the watch looks, with and without messages on their way.
const (
	watchBusy = 25 * time.Millisecond
	watchIdle = time.Second
)

// watch is the goroutine that sees timeouts.
func (p *Publisher) watch() {
	timer := time.NewTimer(watchIdle)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.busy:
		case <-p.stop.Done():
			return
		}
		timer.Reset(p.timeOut(time.Now()))
	}
}

// timeOut answers what has waited for AckTimeout, and says when to look again. Batches are in the order of their deadlines.
func (p *Publisher) timeOut(now time.Time) time.Duration {
	var overdue []*batch
	again := watchIdle
	p.mu.Lock()
	for len(p.batches) > 0 {
		b := p.batches[0]
		late := !now.Before(b.deadline)
		if b.left > 0 && !late {
			break
		}
		if late {
			overdue = append(overdue, b)
		}
		p.batches[0], p.batches = nil, p.batches[1:]
	}
	if p.open > 0 {
		again = watchBusy
	}
	p.mu.Unlock()
	for _, b := range overdue {
		p.expire(b, context.DeadlineExceeded)
	}
	return again
}
