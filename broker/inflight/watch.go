package inflight

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
func (s *Set) watch() {
	timer := time.NewTimer(watchIdle)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.busy:
		case <-s.stop.Done():
			return
		}
		timer.Reset(s.look(time.Now()))
	}
}

// look answers what has waited for AckTimeout, and says when to look again. Batches are in the order of their deadlines.
func (s *Set) look(now time.Time) time.Duration {
	var overdue []*batch
	again := watchIdle
	s.cfg.Mutex.Lock()
	for len(s.batches) > 0 {
		b := s.batches[0]
		late := !now.Before(b.deadline)
		if b.left > 0 && !late {
			break
		}
		if late {
			overdue = append(overdue, b)
		}
		s.batches[0], s.batches = nil, s.batches[1:]
	}
	if s.open > 0 {
		again = watchBusy
	}
	if s.cfg.Look != nil {
		s.cfg.Look()
	}
	s.cfg.Mutex.Unlock()
	for _, b := range overdue {
		s.expire(b, context.DeadlineExceeded)
	}
	return again
}
