package rabbitmq

import (
	"context"
	"time"
)

// How often the watch looks, with and without messages on their way; and for how long it may not have looked: the client drops
// returns and confirmations that nobody took for 5 s, so a process that stood still that long cannot trust what it has not seen.
const (
	watchBusy  = 25 * time.Millisecond
	watchIdle  = time.Second
	standstill = 4 * time.Second
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
		p.timeOut(time.Now())
		timer.Reset(p.watchAgain())
	}
}

func (p *Publisher) watchAgain() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stoodStill() && p.link != nil {
		p.link.drop()
	}
	p.pulse.Store(int64(time.Since(p.began)))
	if p.open > 0 {
		return watchBusy
	}
	return watchIdle
}

// stoodStill reports whether this process did nothing for a while: it was stopped, or its machine.
func (p *Publisher) stoodStill() bool {
	return time.Since(p.began)-time.Duration(p.pulse.Load()) > standstill
}

// timeOut answers what has waited for AckTimeout. Batches are in the order of their deadlines.
func (p *Publisher) timeOut(now time.Time) {
	var overdue []*batch
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
	p.mu.Unlock()
	for _, b := range overdue {
		p.expire(b, context.DeadlineExceeded)
	}
}
