package memstore

import (
	"context"
	"time"

	"github.com/onwardhq/onward/store"
)

// awaits is how long a hint is promised for.
const awaits = 2 * time.Second

var _ store.Waker = (*session)(nil)

// Wait returns when a transaction was committed after a read that asked for that.
func (s *session) Wait(ctx context.Context) error {
	select {
	case <-s.hints: // before all else, so that one who asks with an ended context hears of it in each run alike
		return nil
	default:
	}
	select {
	case <-s.hints:
		return nil
	case <-s.ended:
		return refused(store.ErrFenced, "wait")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await promises a hint.
func (s *session) await(c call) time.Duration {
	s.db.asleep[s] = c.now.Add(awaits)
	return awaits
}

// wake tells all who asked that something was committed, once.
func (db *DB) wake() {
	for s, until := range db.asleep {
		if db.now().Before(until) {
			select {
			case s.hints <- struct{}{}:
			default:
			}
		}
	}
	clear(db.asleep)
}
