package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

var _ store.Progress = (*Admin)(nil)

// Minutes returns the minutes since a time in which the sink published.
func (a *Admin) Minutes(ctx context.Context, sinkName string, since time.Time) ([]store.Minute, error) {
	k, err := a.begin(ctx, "read progress", sinkName)
	if err != nil {
		return nil, err
	}
	defer a.db.mu.Unlock()
	var all []store.Minute
	for at, n := range k.minutes {
		if !at.Before(since.Truncate(time.Minute)) {
			all = append(all, store.Minute{At: at, Published: n})
		}
	}
	slices.SortFunc(all, func(a, b store.Minute) int { return a.At.Compare(b.At) })
	return all, nil
}

// rate is messages a second, since five whole minutes ago.
func (k *sink) rate(now time.Time) float64 {
	since, n := now.Truncate(time.Minute).Add(-5*time.Minute), int64(0)
	for at, published := range k.minutes {
		if !at.Before(since) {
			n += published
		}
	}
	return float64(n) / now.Sub(since).Seconds()
}

// when says of what is published when that was.
func (k *sink) when(r *row, s store.SinkState) store.SinkState {
	if at, known := k.out[r.ID]; known && s.State == store.StatePublished {
		after := at.Truncate(time.Minute)
		s.PublishedAfter, s.PublishedBy = &after, &at
	}
	return s
}
