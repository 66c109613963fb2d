package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var _ store.Retainer = (*Store)(nil)

// mark says that everything with a number up to seq was written before.
type mark struct {
	at  time.Time
	seq int64
}

// retainRows is how many rows of the log one call looks at.
const retainRows = 1000

// Retain removes what no sink needs any more, and discards dead letters that are old enough: a store.Retainer.
func (s *Store) Retain(ctx context.Context, r store.Retention) (done store.Retained, err error) {
	if r.Published < 0 || r.Dead < 0 {
		return done, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "retain", Detail: fmt.Sprintf("retention %v, of dead letters %v", r.Published, r.Dead)}
	}
	db := s.db
	fault, err := db.begin(ctx, Call{Op: OpRetain, Relay: r.Relay})
	if err != nil {
		return done, err
	}
	defer db.mu.Unlock()
	if s.closed {
		return done, errClosed
	}
	now := db.now()
	if !r.Relay.IsZero() && db.state.oldest(now) != r.Relay {
		return done, nil
	}
	db.state.retention, db.state.retains = r.Published, true
	done = db.removePassed(db.state.writtenBefore(now, r.Published))
	for _, k := range db.state.sinks {
		if r.Dead > 0 {
			done.Dead += db.expire(k, now.Add(-r.Dead), now)
		}
		k.forgetTraces(&db.state)
		maps.DeleteFunc(k.minutes, func(at time.Time, _ int64) bool { return now.Sub(at) > max(r.Published, 24*time.Hour) })
	}
	return done, fault.Err
}

// oldest is the live relay that registered first.
func (s *state) oldest(now time.Time) (id outbox.ID) {
	for _, r := range s.relays {
		if r.ends.After(now) && (id.IsZero() || slices.Compare(r.id[:], id[:]) < 0) {
			id = r.id
		}
	}
	return id
}

// writtenBefore is the highest number that was surely given so long ago; and it notes how far the log goes now.
func (s *state) writtenBefore(now time.Time, ago time.Duration) (seq int64) {
	if ago == 0 {
		return s.seq
	}
	if n := len(s.marks); n == 0 || s.marks[n-1].seq < s.seq {
		s.marks = append(s.marks, mark{now, s.seq})
	}
	last := -1
	for i, m := range s.marks {
		if !m.at.After(now.Add(-ago)) {
			last, seq = i, m.seq
		}
	}
	s.marks = s.marks[max(last, 0):]
	return seq
}

// removePassed removes rows up to this number that every sink has passed.
func (db *DB) removePassed(seq int64) (done store.Retained) {
	s := &db.state
	if len(s.sinks) == 0 {
		return done
	}
	looked := 0
	for i, log := range s.logs {
		n := queue(log).upTo(seq)
		if n == 0 {
			continue
		}
		kept := make([]*row, 0, len(log))
		for j, r := range log {
			if j >= n || looked >= retainRows || slices.ContainsFunc(s.sinks, func(k *sink) bool { return k.parts[i].needs(r) }) {
				kept = append(kept, r)
				done.More = done.More || j < n && looked >= retainRows
				continue
			}
			looked++
			done.Messages++
			r.gone = true
			for _, k := range s.sinks {
				delete(k.skipped, r.ID)
				delete(k.out, r.ID)
			}
			if !s.kept(r) {
				delete(s.ids, r.ID)
			}
		}
		s.logs[i] = kept
	}
	return done
}

// needs reports whether the durable cursor has not passed a row: it was not handed over, or by a read that is not settled whole.
func (p *part) needs(r *row) bool {
	if _, found := p.unread.find(r.Seq); found {
		return true
	}
	return slices.ContainsFunc(p.reads, func(read *partRead) bool { return slices.Contains(read.rows, r) })
}

// kept reports whether a row has a copy that is parked or dead.
func (s *state) kept(r *row) bool {
	return slices.ContainsFunc(s.sinks, func(k *sink) bool { return k.parked[r.ID] != nil || k.dead[r.ID] != nil })
}

// known is the row with this id, in the log, in an open transaction, or in a copy.
func (s *state) known(id outbox.ID) *row {
	r := s.ids[id]
	if r != nil && r.gone && !s.kept(r) {
		delete(s.ids, id)
		return nil
	}
	return r
}

// expire discards dead letters that died before then.
func (db *DB) expire(k *sink, before, now time.Time) int {
	var old []*dead
	for _, d := range k.dead {
		if d.lastFailure.Before(before) {
			old = append(old, d)
		}
	}
	slices.SortFunc(old, func(a, b *dead) int { return slices.Compare(a.row.ID[:], b.row.ID[:]) })
	for _, d := range old {
		id := d.row.ID
		k.exhume(d)
		k.parts[d.row.Partition].normalise(d.row.Key, now)
		k.discarded[id] = struct{}{}
		db.state.audit = append(db.state.audit, AuditLine{
			At: now, Actor: "retention", Action: "discard", Sink: k.name, ID: id, Reason: "dead since " + d.lastFailure.String(),
		})
	}
	return len(old)
}

// forgetTraces forgets the attempts and positions of messages that are no more.
func (k *sink) forgetTraces(s *state) {
	for id := range k.attempts {
		if s.known(id) == nil {
			delete(k.attempts, id)
		}
	}
	for id := range k.positions {
		if s.known(id) == nil {
			delete(k.positions, id)
		}
	}
}

// held is for how long retention has waited for a sink.
func (s *state) held(k *sink, now time.Time) (long time.Duration) {
	if !s.retains {
		return 0
	}
	for i, log := range s.logs {
		for _, r := range log {
			if k.parts[i].needs(r) {
				long = max(long, now.Sub(r.CreatedAt)-s.retention)
				break
			}
		}
	}
	return long
}
