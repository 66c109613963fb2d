package servicebus

import (
	"context"
	"slices"
	"time"
)

// How often the watch looks, with and without messages on their way; and for how long an answer waits for what the client says
// of a message whose time is over: longer means that the service takes nothing from the socket.
const (
	watchBusy = 25 * time.Millisecond
	watchIdle = time.Second
	stuckFor  = 500 * time.Millisecond
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
	p.giveUp(now)
	if p.open > 0 {
		again = watchBusy
	}
	p.mu.Unlock()
	for _, b := range overdue {
		p.expire(b, context.DeadlineExceeded)
	}
	return again
}

// giveUp answers messages that the client has had in its hands for too long. The caller has the lock.
func (p *Publisher) giveUp(now time.Time) {
	p.late = slices.DeleteFunc(p.late, func(b *batch) bool { return b.left == 0 })
	for _, b := range p.late {
		for i := range b.flights {
			if f := &b.flights[i]; f.state == sending && now.Sub(b.over) > stuckFor {
				p.settle(f, *f.earlySent)
			}
		}
	}
}
