package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

// Heads returns parked messages that are due. Scheduled ones that are due while others of their key wait are placed
// behind those.
func (s *session) Heads(ctx context.Context, partitions []int, most int) (store.Heads, error) {
	c, err := s.begin(ctx, OpHeads)
	if err != nil {
		return store.Heads{}, err
	}
	var due []*parked
	heads := store.Heads{Pauses: c.sink.endPauses(c.now)}
	for _, p := range heads.Pauses {
		if p.ExpiresAt != nil && (heads.Next == 0 || p.ExpiresAt.Sub(c.now) < heads.Next) {
			heads.Next = p.ExpiresAt.Sub(c.now)
		}
	}
	for _, id := range partitions {
		if id < 0 || id >= len(c.sink.parts) || c.sink.parts[id].owner != c.relay {
			continue
		}
		next := c.sink.parts[id].due.until(c.now, 0, func(r *parked) { due = append(due, r) })
		if !next.IsZero() && next.Before(forever) && (heads.Next == 0 || next.Sub(c.now) < heads.Next) {
			heads.Next = next.Sub(c.now)
		}
	}
	slices.SortFunc(due, compareDue)
	given := map[store.Key]bool{}
	for _, r := range due {
		if s.db.joins(c.sink, r) {
			continue
		}
		key := store.Key{Partition: r.row.Partition, Key: r.row.Key}
		if key.Key != "" && given[key] {
			continue
		}
		if heads.More = len(heads.Due) >= most; heads.More {
			break
		}
		given[key] = true
		head := r.view()
		head.Overdue = c.now.Sub(r.due)
		heads.Due = append(heads.Due, head)
	}
	return heads, s.end(c, OpHeads)
}

// joins puts a scheduled message that is due behind what its key has waiting, and reports whether anything was.
func (db *DB) joins(k *sink, r *parked) bool {
	if r.reason != store.ReasonScheduled || r.row.Key == "" {
		return false
	}
	p := k.parts[r.row.Partition]
	l := p.keys[r.row.Key]
	if len(l.rows) == 0 && l.blocking == 0 {
		return false
	}
	l.remove(r)
	p.setDue(r, time.Time{})
	r.reason = store.ReasonBehind
	r.place.Order = db.state.seq + 1 // behind the last number given, which may be waiting here
	l.insert(r)
	return true
}

// Followers returns the parked messages of a key, from the place on.
func (s *session) Followers(ctx context.Context, key store.Key, after store.Place, room store.Room) ([]store.Parked, error) {
	c, err := s.begin(ctx, OpFollowers)
	if err != nil {
		return nil, err
	}
	if key.Partition < 0 || key.Partition >= len(c.sink.parts) || c.sink.parts[key.Partition].owner != c.relay || key.Key == "" {
		return nil, s.end(c, OpFollowers)
	}
	l := c.sink.parts[key.Partition].keys[key.Key]
	if l == nil || l.blocking > 0 {
		return nil, s.end(c, OpFollowers)
	}
	var found []store.Parked
	bytes := room.Bytes
	for _, r := range l.rows[l.after(after):] {
		if bytes -= len(r.row.Payload); len(found) >= room.Messages || bytes < 0 && len(found) > 0 {
			break
		}
		found = append(found, r.view())
	}
	return found, s.end(c, OpFollowers)
}

func (r *parked) view() store.Parked {
	return store.Parked{Record: r.row.Record, Place: r.place, Reason: r.reason, Attempts: r.attempts, Before: r.before}
}
