package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/store"
)

// Settle writes outcomes back, all or nothing.
func (s *session) Settle(ctx context.Context, st store.Settlement) (store.Settled, error) {
	c, err := s.begin(ctx, OpSettle)
	if err != nil {
		return store.Settled{}, err
	}
	if err := s.checkDone(c, st.Done); err != nil {
		s.db.mu.Unlock()
		return store.Settled{}, err
	}
	var settled store.Settled
	for i := range st.Verdicts {
		v := &st.Verdicts[i]
		if v.Partition < 0 || v.Partition >= len(c.sink.parts) || c.sink.parts[v.Partition].owner != c.relay {
			continue // it was lost meanwhile: its next owner decides
		}
		if !s.db.judge(c, v) {
			settled.Gone++
		}
	}
	for i := range st.Verdicts {
		if v := &st.Verdicts[i]; v.Key != "" && v.Partition >= 0 && v.Partition < len(c.sink.parts) {
			c.sink.parts[v.Partition].normalise(v.Key, c.now)
		}
	}
	for _, d := range st.Done {
		s.done(c, d)
	}
	s.fold(c)
	if st.Published > 0 {
		c.sink.minutes[c.now.Truncate(time.Minute)] += int64(st.Published)
	}
	s.replaceCursor(c, st.Published)
	return settled, s.end(c, OpSettle)
}

// checkDone refuses what was never read.
func (s *session) checkDone(c call, done []store.Done) error {
	for _, d := range done {
		if d.Partition < 0 || d.Partition >= len(c.sink.parts) || d.Read > s.page || d.N < 0 {
			return fmt.Errorf("settle: there is no read %d of partition %d", d.Read, d.Partition)
		}
		p := c.sink.parts[d.Partition]
		if r := p.find(d.Read); p.owner == c.relay && r != nil && d.N > len(r.rows) {
			return fmt.Errorf("settle: read %d of partition %d has %d messages, not %d", d.Read, d.Partition, len(r.rows), d.N)
		}
	}
	return nil
}

func (p *part) find(no uint64) *partRead {
	for _, r := range p.reads {
		if r.read.no == no {
			return r
		}
	}
	return nil
}

// done moves the cursor of a partition. What is settled already, or belongs to another relay, stays as it is.
func (s *session) done(c call, d store.Done) {
	p := c.sink.parts[d.Partition]
	r := p.find(d.Read)
	if p.owner != c.relay || r == nil || d.N <= r.n {
		return
	}
	for _, row := range r.rows[r.n:d.N] {
		p.passed = max(p.passed, row.Seq)
		if !c.sink.known(row) {
			c.sink.out[row.ID] = c.now
		}
	}
	r.n = d.N
	if r.n == len(r.rows) {
		r.read.open--
	}
}

// judge carries a verdict out; false: it is on a parked message that is not there.
func (db *DB) judge(c call, v *store.Verdict) bool {
	k := c.sink
	if v.FromParked {
		return db.judgeParked(c, v)
	}
	r := db.state.at(v.Partition, v.Seq)
	if r == nil || r.ID != v.ID {
		return true
	}
	_, isDiscarded := k.discarded[r.ID]
	if k.parked[r.ID] != nil || k.dead[r.ID] != nil || isDiscarded {
		return true // it came again after a crash: it has its outcome
	}
	k.note(c, v)
	switch v.To {
	case store.Out:
		k.position(v)
	case store.Park:
		k.add(newParked(c, v, r))
	case store.Dead:
		k.bury(newDead(c, v, r, store.Place{Order: r.Seq, Seq: r.Seq}, time.Time{}))
	}
	return true
}

func (db *DB) judgeParked(c call, v *store.Verdict) bool {
	k := c.sink
	old := k.parked[v.ID]
	if old == nil {
		return false
	}
	k.note(c, v)
	k.drop(old)
	switch v.To {
	case store.Out:
		k.position(v)
		k.out[v.ID] = c.now
	case store.Park:
		again := newParked(c, v, old.row)
		again.place, again.before = old.place, old.before
		again.firstFailure = cmp.Or(old.firstFailure, again.firstFailure)
		again.lastFailure = cmp.Or(again.lastFailure, old.lastFailure)
		again.code, again.text = cmp.Or(again.code, old.code), cmp.Or(again.text, old.text)
		k.add(again)
	case store.Dead:
		k.bury(newDead(c, v, old.row, old.place, old.firstFailure))
	}
	return true
}

func newParked(c call, v *store.Verdict, r *row) *parked {
	c.sink.endPauses(c.now)
	p := &parked{
		row: r, place: store.Place{Order: r.Seq, Seq: r.Seq}, reason: v.Reason, attempts: v.Attempts,
		code: v.Code, text: cut(v.Error), index: -1,
	}
	switch v.Reason {
	case store.ReasonRetry:
		p.due = c.now.Add(v.Due)
	case store.ReasonScheduled:
		p.due = cmp.Or(r.AvailableAt, c.now)
	case store.ReasonBehind: // it waits for those before it, not for a time
	case store.ReasonPaused:
		p.due = c.now
		if slices.ContainsFunc(c.sink.pauses, func(h store.Pause) bool { return h.ID == v.Pause }) {
			p.due, p.pause = forever, v.Pause
		}
	}
	if r.Key == "" && p.due.IsZero() {
		p.due = c.now // nothing can stand before it
	}
	if v.Tried != nil {
		p.firstFailure, p.lastFailure = c.now, c.now
	}
	return p
}

func newDead(c call, v *store.Verdict, r *row, place store.Place, firstFailure time.Time) *dead {
	return &dead{
		row: r, place: place, blocks: v.Blocks && r.Key != "", code: v.Code, text: cut(v.Error), attempts: v.Attempts,
		firstFailure: cmp.Or(firstFailure, c.now), lastFailure: c.now, relay: c.relay.name,
	}
}

// note keeps the failed attempt that led to a verdict; one that was kept before stays.
func (k *sink) note(c call, v *store.Verdict) {
	if v.Tried == nil {
		return
	}
	for _, a := range k.attempts[v.ID] {
		if a.No == v.Tried.No {
			return
		}
	}
	attempt := *v.Tried
	attempt.Error = cut(attempt.Error)
	k.attempts[v.ID] = append(k.attempts[v.ID], store.AttemptInfo{At: c.now, Relay: c.relay.name, Attempt: attempt})
}

func (k *sink) position(v *store.Verdict) {
	if _, known := k.positions[v.ID]; v.Position != "" && !known {
		k.positions[v.ID] = v.Position
	}
}

// at returns the committed row of a partition with this seq.
func (s *state) at(partition int, seq int64) *row {
	log := queue(s.logs[partition])
	i, found := log.find(seq)
	if !found {
		return nil
	}
	return log[i]
}

const maxErrorText = 2048

// cut makes an error text storable: valid, without NUL, at most 2 KiB.
func cut(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= maxErrorText {
		return text
	}
	n := maxErrorText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
