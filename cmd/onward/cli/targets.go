package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// target is one message in one sink.
type target struct {
	sink, topic, key string
	id               outbox.ID
	seq              int64
	refused          error // why nothing can be done to it
}

// selectTargets finds what the ids or the filter name, the oldest first: a key's messages go in their order then. more
// says that further ones match.
func (t *act) selectTargets(ctx context.Context, admin store.Admin, ids []outbox.ID, f store.Filter) (targets []target, more bool, err error) {
	if len(ids) == 0 {
		return t.selectByFilter(ctx, admin, f)
	}
	for _, id := range ids {
		f.ID = id
		found, err := t.selectByID(ctx, admin, f)
		if err != nil {
			return nil, false, err
		}
		targets = append(targets, found...)
	}
	slices.SortStableFunc(targets, func(a, b target) int { return cmp.Compare(a.seq, b.seq) })
	return targets, false, nil
}

// selectByFilter pages through all that match and keeps the oldest.
func (t *act) selectByFilter(ctx context.Context, admin store.Admin, f store.Filter) (targets []target, more bool, err error) {
	f.Limit = 1000
	for {
		list, err := admin.Dead(ctx, f)
		if err != nil {
			return nil, false, err
		}
		for i := range list.Dead {
			targets = append(targets, deadTarget(&list.Dead[i]))
		}
		if cut := len(targets) - t.limit; cut > 0 {
			targets, more = slices.Delete(targets, 0, cut), true
		}
		if list.Next == "" {
			slices.Reverse(targets)
			return targets, more, nil
		}
		f.After = list.Next
	}
}

func deadTarget(d *store.DeadInfo) target {
	return target{sink: d.Sink, topic: d.Topic, key: d.Key, id: d.ID, seq: d.Seq}
}

// selectByID finds one message, in each sink where it can be acted upon. One that is in none is a target that is refused.
func (t *act) selectByID(ctx context.Context, admin store.Admin, f store.Filter) (targets []target, err error) {
	list, err := admin.Dead(ctx, f)
	if err != nil {
		return nil, err
	}
	for i := range list.Dead {
		targets = append(targets, deadTarget(&list.Dead[i]))
	}
	m, err := admin.Message(ctx, f.ID)
	if err != nil && outbox.CodeOf(err) != store.ErrNotFound.Code {
		return nil, err
	}
	of := target{topic: m.Topic, key: m.Key, id: f.ID, seq: m.Seq}
	for _, s := range m.States {
		if t.parkedToo && s.State == store.StateParked && (f.Sink == "" || f.Sink == s.Sink) {
			of.sink = s.Sink
			targets = append(targets, of)
		}
	}
	if len(targets) > 0 {
		return targets, nil
	}
	of.sink, of.refused = f.Sink, err
	if err == nil {
		of.refused = notDead(&m, t.verb+" message "+f.ID.String(), store.ErrStateConflict.Code)
	}
	return []target{of}, nil
}
