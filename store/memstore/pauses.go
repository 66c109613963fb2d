package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

var (
	_ store.Pauser = (*Admin)(nil)
	_ store.Keys   = (*Admin)(nil)
)

// forever is the due time of what waits for the end of a pause.
var forever = time.Date(200_000, 1, 1, 0, 0, 0, 0, time.UTC)

// endPauses makes due what waits for pauses that have ended, forgets those, and returns the others.
func (k *sink) endPauses(now time.Time) []store.Pause {
	ended := map[int64]time.Time{}
	k.pauses = slices.DeleteFunc(k.pauses, func(p store.Pause) bool {
		if p.ExpiresAt == nil || p.ExpiresAt.After(now) {
			return false
		}
		ended[p.ID] = *p.ExpiresAt
		return true
	})
	if len(ended) > 0 {
		for _, r := range k.parked {
			if at, ok := ended[r.pause]; ok && r.due.Equal(forever) {
				k.parts[r.row.Partition].setDue(r, at)
			}
		}
	}
	return slices.Clone(k.pauses)
}

// Pause holds messages back.
func (a *Admin) Pause(ctx context.Context, act store.PauseAct) (store.Pause, error) {
	const op = "pause"
	k, err := a.begin(ctx, op, act.Sink)
	if err != nil {
		return store.Pause{}, err
	}
	defer a.db.mu.Unlock()
	now := a.db.now()
	if err := act.Check(op, now); err != nil {
		return store.Pause{}, err
	}
	k.endPauses(now)
	p := store.Pause{
		Sink: act.Sink, Kind: act.Kind, Name: act.Name, Reason: act.Reason, Actor: act.Actor, CreatedAt: now, ExpiresAt: act.Ends(now),
	}
	i, found := slices.BinarySearchFunc(k.pauses, p, store.ComparePauses)
	switch {
	case found:
		p.ID = k.pauses[i].ID
	case len(k.pauses) >= store.MostPauses:
		return store.Pause{}, act.TooMany(op)
	}
	if act.DryRun {
		return p, nil
	}
	if found {
		k.pauses[i] = p
	} else {
		a.db.state.paused++
		p.ID = a.db.state.paused
		k.pauses = slices.Insert(k.pauses, i, p)
	}
	a.audit(store.Act{Sink: act.Sink, Actor: act.Actor, Reason: act.Reason}, op, now)
	return p, nil
}

// Resume ends a pause.
func (a *Admin) Resume(ctx context.Context, act store.PauseAct) error {
	const op = "resume"
	k, err := a.begin(ctx, op, act.Sink)
	if err != nil {
		return err
	}
	defer a.db.mu.Unlock()
	if err := act.Check(op, time.Time{}); err != nil {
		return err
	}
	now := a.db.now()
	k.endPauses(now)
	i, found := slices.BinarySearchFunc(k.pauses, store.Pause{Sink: act.Sink, Kind: act.Kind, Name: act.Name}, store.ComparePauses)
	switch {
	case !found:
		return act.NotPaused(op)
	case act.DryRun:
		return nil
	}
	k.pauses[i].ExpiresAt = &now
	k.endPauses(now)
	a.audit(store.Act{Sink: act.Sink, Actor: act.Actor, Reason: act.Reason}, op, now)
	return nil
}

// Pauses lists those that have not ended.
func (a *Admin) Pauses(ctx context.Context, sinkName string) (all []store.Pause, err error) {
	only, err := a.begin(ctx, "list pauses", sinkName)
	if err != nil {
		return nil, err
	}
	defer a.db.mu.Unlock()
	return a.db.pauses(only), nil
}

// pauses returns those of a sink, or of all.
func (db *DB) pauses(only *sink) (all []store.Pause) {
	for _, k := range db.state.sinks {
		if only == nil || only == k {
			all = append(all, k.endPauses(db.now())...)
		}
	}
	return all
}
