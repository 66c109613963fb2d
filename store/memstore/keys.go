package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// keySpot is where a list of keys goes on.
type keySpot struct {
	sink      string
	partition int
	key       string
}

func (a keySpot) compare(b keySpot) int {
	return cmp.Or(cmp.Compare(a.sink, b.sink), cmp.Compare(a.partition, b.partition), cmp.Compare(a.key, b.key))
}

// Keys lists keys with parked messages, or dead letters that block.
func (a *Admin) Keys(ctx context.Context, f store.KeyFilter) (list store.KeyList, err error) {
	const op = "list keys"
	after, err := checkKeys(op, f)
	if err != nil {
		return list, err
	}
	only, err := a.begin(ctx, op, f.Sink)
	if err != nil {
		return list, err
	}
	defer a.db.mu.Unlock()
	now := a.db.now()
	var spots []keySpot
	for _, k := range a.db.state.sinks {
		if only != nil && only != k {
			continue
		}
		for _, p := range k.parts {
			for key, l := range p.keys {
				at := keySpot{k.name, p.id, key}
				if (f.After == "" || at.compare(after) > 0) && (!f.Blocked || l.blocked(now)) {
					spots = append(spots, at)
				}
			}
		}
	}
	slices.SortFunc(spots, keySpot.compare)
	limit := cmp.Or(f.Limit, 100)
	if len(spots) > limit {
		spots = spots[:limit]
		last := spots[limit-1]
		list.Next = fmt.Sprintf("%s/%d/%s", last.sink, last.partition, last.key)
	}
	pauses := a.db.pauses(nil)
	for _, at := range spots {
		list.Keys = append(list.Keys, a.db.state.sink(at.sink).keyInfo(at.key, at.partition, now, store.MostWaitingInList, pauses))
	}
	return list, nil
}

func checkKeys(op string, f store.KeyFilter) (after keySpot, err error) {
	bad := func(detail string) (keySpot, error) {
		return keySpot{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Op: op, Detail: detail}
	}
	if f.Limit < 0 || f.Limit > 10_000 {
		return bad(fmt.Sprintf("limit %d is not from 1 to 10,000", f.Limit))
	}
	if f.After == "" {
		return after, nil
	}
	parts := strings.SplitN(f.After, "/", 3)
	if len(parts) != 3 {
		return bad("after is not the next of a list")
	}
	after = keySpot{sink: parts[0], key: parts[2]}
	if after.partition, err = strconv.Atoi(parts[1]); err != nil {
		return bad("after is not the next of a list")
	}
	return after, nil
}

// Key says how a key stands.
func (a *Admin) Key(ctx context.Context, sinkName, key string) (all []store.KeyInfo, err error) {
	const op = "show key"
	only, err := a.begin(ctx, op, sinkName)
	if err != nil {
		return nil, err
	}
	defer a.db.mu.Unlock()
	partition := partitionOf(&outbox.Message{Key: key}, a.db.config.Partitions)
	known := slices.ContainsFunc(a.db.state.logs[partition], func(r *row) bool { return r.Key == key })
	pauses := a.db.pauses(nil)
	for _, k := range a.db.state.sinks {
		if only != nil && only != k {
			continue
		}
		info := k.keyInfo(key, partition, a.db.now(), store.MostWaiting, pauses)
		known = known || info.Blocked() || info.Scheduled > 0
		all = append(all, info)
	}
	if !known || key == "" {
		return nil, notFound(op, fmt.Sprintf("nothing is known of key %q", key))
	}
	return all, nil
}

func (k *sink) keyInfo(key string, partition int, now time.Time, most int64, pauses []store.Pause) store.KeyInfo {
	info := store.KeyInfo{Sink: k.name, Key: key, Partition: partition}
	if l := k.parts[partition].keys[key]; l != nil {
		waiting := slices.Clone(l.rows)
		for _, r := range l.scheduled {
			if r.due.After(now) {
				info.Scheduled = min(info.Scheduled+1, most)
			} else {
				waiting = append(waiting, r)
			}
		}
		info.Waiting = min(int64(len(waiting)), most)
		info.WaitingAtLeast = int64(len(waiting)) > most
		if len(waiting) > 0 {
			info.Head = waiting[0].block()
			info.Oldest = &waiting[0].row.CreatedAt
		}
	}
	var first *dead
	for _, d := range k.dead {
		if d.blocks && d.row.Key == key {
			info.DeadCount++
			if first == nil || comparePlaces(d.place, first.place) < 0 {
				first = d
			}
		}
	}
	if first != nil {
		info.Dead = &store.KeyBlock{ID: first.row.ID, Topic: first.row.Topic, Attempts: first.attempts, Code: first.code, Error: first.text}
		if at := &first.row.CreatedAt; info.Oldest == nil || at.Before(*info.Oldest) {
			info.Oldest = at
		}
	}
	info.MarkPaused(pauses)
	return info
}

func (r *parked) block() *store.KeyBlock {
	b := &store.KeyBlock{ID: r.row.ID, Topic: r.row.Topic, Reason: r.reason, Attempts: r.attempts, Code: r.code, Error: r.text}
	if due := r.due; !due.IsZero() && due.Before(forever) {
		b.DueAt = &due
	}
	return b
}
