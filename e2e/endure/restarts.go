package main

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// scales are the numbers of relays between which a run changes, in turn.
var scales = []int{1, 8, 3}

// restarts restarts one relay or two at a time, and now and then changes how many there are. Every relay ends as it is told to.
func (s *stage) restarts(ctx context.Context) error {
	for done := 0; done < s.Count; s.say(done) {
		if err := harness.Pause(ctx, time.Duration(s.rng.Int64N(int64(2*s.Every)))); err != nil {
			return err
		}
		if s.rng.Float64() < 0.1 || s.report.Scales == 0 {
			to := scales[s.report.Scales%len(scales)]
			s.report.Scales++
			s.stopAll(s.some(max(0, len(s.members)-to)))
			if err := s.start(to - len(s.members)); err != nil {
				return err
			}
			done++
		} else {
			victims, err := s.restarted(ctx, min(1+s.rng.IntN(2), s.Count-done))
			if err != nil {
				return err
			}
			s.stopAll(victims)
			if err := s.start(len(victims)); err != nil {
				return err
			}
			done += len(victims)
		}
		s.report.Count = done
	}
	return nil
}

// restarted chooses n relays, most of the time one that has messages in flight, and at times one that has just been started.
func (s *stage) restarted(ctx context.Context, n int) ([]*member, error) {
	if s.rng.Float64() < 0.2 {
		return s.some(n), nil
	}
	return s.busy(ctx, n)
}

// stopAll tells relays to stop, all at once, and waits for each.
func (s *stage) stopAll(victims []*member) {
	errs := make([]error, len(victims))
	var wg sync.WaitGroup
	for i, m := range victims {
		untilReady(m)
		s.report.Flight.add(m.flight)
		_ = m.process.Signal(syscall.SIGTERM)
		wg.Go(func() { errs[i] = m.process.Wait(time.Minute) })
	}
	wg.Wait()
	for i, m := range victims {
		s.ended(m, errs[i])
	}
}

// untilReady waits until a relay takes SIGTERM as a request; before, the system ends it.
func untilReady(m *member) {
	for !m.flight.Ready() && !m.process.Ended() {
		_ = harness.Pause(context.Background(), time.Millisecond)
	}
}
