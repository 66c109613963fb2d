package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// kills kills relays at random points, each replaced at once by another one: mostly one that has messages in flight, now and then
// any, several or all of them; some while they are stopping.
func (s *stage) kills(ctx context.Context) error {
	for done := 0; done < s.Count; s.say(done) {
		if err := harness.Pause(ctx, time.Duration((0.5+s.rng.Float64())*float64(s.Every))); err != nil {
			return err
		}
		victims, err := s.victims(ctx, s.Count-done)
		if err != nil {
			return err
		}
		if s.rng.Float64() < 0.1 {
			s.tell(victims)
			if err := harness.Pause(ctx, time.Duration(s.rng.IntN(30))*time.Millisecond); err != nil {
				return err
			}
		}
		s.kill(victims)
		if err := s.start(len(victims)); err != nil {
			return err
		}
		done += len(victims)
		s.report.Count = done
	}
	return nil
}

// victims chooses whom to kill, at most most.
func (s *stage) victims(ctx context.Context, most int) ([]*member, error) {
	switch chance := s.rng.Float64(); {
	case chance < 0.02:
		return s.some(min(2+s.rng.IntN(s.Relays), most)), nil
	case chance < 0.2:
		return s.some(1), nil
	}
	return s.busy(ctx, 1)
}

// busy are n relays, at random, of which one has messages in flight; where nothing flows for a while, any will do.
func (s *stage) busy(ctx context.Context, n int) ([]*member, error) {
	for range 500 {
		all := s.some(len(s.members))
		for i, m := range all {
			if m.flight.Unsettled() > 0 {
				all[0], all[i] = all[i], all[0]
				return all[:min(n, len(all))], nil
			}
		}
		if err := harness.Pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
	return s.some(n), nil
}

// tell asks relays to stop.
func (s *stage) tell(victims []*member) {
	for _, m := range victims {
		if m.flight.Ready() {
			m.told = true
			_ = m.process.Signal(syscall.SIGTERM)
		}
	}
}

// kill kills relays at once, and counts what they had in flight.
func (s *stage) kill(victims []*member) {
	for _, m := range victims {
		if m.process.Ended() && !m.told {
			s.died(m, errors.New("before it was killed"))
		}
		s.fault("kill", m)
		_ = m.process.Signal(syscall.SIGKILL)
	}
	for _, m := range victims {
		_ = m.process.Wait(time.Minute)
		s.report.Flight.add(m.flight)
		s.drop(m)
	}
}
