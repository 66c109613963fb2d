package sqlite

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/sqlite/internal/failpoint"
)

// Settle writes outcomes back, all or nothing, behind a fence: the version of the cursor.
func (s *Session) Settle(ctx context.Context, st store.Settlement) (settled store.Settled, err error) {
	const op = "settle"
	if err := s.usable(op, false); err != nil {
		return settled, err
	}
	err = s.store.writer.use(ctx, func(c *call) error {
		plan, err := s.plan(st.Done)
		if err != nil {
			return err
		}
		if plan.epoch == 0 || len(st.Done) == 0 && len(st.Verdicts) == 0 && st.Published == 0 {
			v, err := s.look(c) // what is not held is left to its owner
			if err == nil {
				err = s.check(v)
			}
			return err
		}
		err = c.write(func() error {
			if err := s.settle(c, plan, st, &settled); err != nil {
				return err
			}
			failpoint.Hit("sqlite.settle.written")
			return nil
		})
		if err != nil {
			return err
		}
		failpoint.Hit("sqlite.settle.committed")
		s.settled(plan)
		return nil
	})
	return settled, s.failed(op, err)
}

// plan is a settlement of the session's reads, before it is written.
type plan struct {
	epoch, no int64
	seq       int64         // up to which everything has an outcome; 0: as before
	done      map[*read]int // how far the reads go
}

func (s *Session) plan(done []store.Done) (plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := plan{epoch: s.epoch, no: s.no, done: map[*read]int{}}
	for _, d := range done {
		if d.Partition != 0 || d.Read > s.page || d.N < 0 {
			return p, fmt.Errorf("there is no read %d of partition %d", d.Read, d.Partition)
		}
		for _, r := range s.reads {
			if r.no != d.Read {
				continue
			}
			if d.N > len(r.seqs) {
				return p, fmt.Errorf("read %d has %d messages, not %d", d.Read, len(r.seqs), d.N)
			}
			p.done[r] = max(d.N, p.done[r], r.done)
		}
	}
	for _, r := range s.reads {
		n := max(r.done, p.done[r])
		if n < len(r.seqs) {
			if n > 0 {
				p.seq = r.seqs[n-1]
			}
			return p, nil // what stands behind it may come again, but nothing is lost
		}
		p.seq = r.upto
	}
	p.seq = s.at
	return p, nil
}

func (s *Session) settle(c *call, p plan, st store.Settlement, settled *store.Settled) error {
	*settled = store.Settled{}
	if _, err := c.exec("progress", s.sink); err != nil {
		return err
	}
	changed, err := c.exec("settle", s.sink, s.relay.ID.String(), p.epoch, p.no, p.seq, st.Published)
	if err != nil {
		return err
	}
	if changed == 0 {
		_, err := s.look(c)
		if err == nil {
			err = refusal(store.ErrReload)
		}
		return err
	}
	keys := map[string]bool{}
	for i := range st.Verdicts {
		v := &st.Verdicts[i]
		if v.Partition != 0 {
			continue
		}
		gone, err := s.judge(c, v)
		if err != nil {
			return err
		}
		if gone {
			settled.Gone++
		}
		keys[v.Key] = true
	}
	for key := range keys {
		if err := c.promote(s.sink, key); err != nil {
			return err
		}
	}
	return nil
}

// settled takes over into memory what was written.
func (s *Session) settled(p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != p.epoch {
		return
	}
	s.no = p.no + 1
	for r, n := range p.done {
		r.done = n
	}
	for len(s.reads) > 0 && s.reads[0].done == len(s.reads[0].seqs) {
		s.reads[0] = nil
		s.reads = s.reads[1:]
	}
}

// promote makes the first of a key's line its head: the one row of the key with due_at, scheduled rows apart; or nobody,
// while a dead letter blocks the key.
func (c *call) promote(sink, key string) error {
	if key == "" {
		return nil
	}
	var head int64
	var due *int64
	var blocked bool
	found, err := c.row("line", []any{sink, key}, &head, &due, &blocked)
	if err != nil || !found {
		return err
	}
	if blocked {
		head = 0
	}
	if _, err := c.exec("demote", sink, key, head); err != nil || blocked || due != nil {
		return err
	}
	_, err = c.exec("promote", head)
	return err
}

// judge carries a verdict out; gone: it is on a parked message that is not there.
func (s *Session) judge(c *call, v *store.Verdict) (gone bool, err error) {
	id := v.ID.String()
	if v.FromParked {
		var there bool
		if _, err := c.row("is_parked", []any{s.sink, id}, &there); err != nil || !there {
			return !there, err
		}
	} else {
		var has bool
		if _, err := c.row("has_outcome", []any{s.sink, id, v.Seq}, &has); err != nil || has {
			return false, err
		}
	}
	if t := v.Tried; t != nil {
		_, err := c.exec("attempt", s.sink, id, t.No, s.relay.Name, t.Outcome, string(t.Code), cut(t.Error), t.Took.Microseconds())
		if err != nil {
			return false, err
		}
	}
	return false, s.carryOut(c, v, id)
}

func (s *Session) carryOut(c *call, v *store.Verdict, id string) (err error) {
	switch {
	case v.To == store.Out && v.Position != "":
		_, err = c.exec("position", s.sink, id, v.Position)
	case v.To == store.Park:
		return s.park(c, v, id)
	case v.To == store.Dead && v.FromParked:
		_, err = c.exec("bury_parked", s.sink, id, v.Blocks, string(v.Code), cut(v.Error), v.Attempts, s.relay.Name)
	case v.To == store.Dead:
		_, err = c.exec("bury", s.sink, v.Seq, v.Blocks, string(v.Code), cut(v.Error), v.Attempts, s.relay.Name)
	}
	if err == nil && v.FromParked {
		_, err = c.exec("unpark", s.sink, id)
	}
	return err
}

// park parks a message, or parks it again; under a pause that has not ended it waits for its end.
func (s *Session) park(c *call, v *store.Verdict, id string) error {
	var pause any
	if v.Reason == store.ReasonPaused {
		var holds bool
		if _, err := c.row("is_paused", []any{s.sink, v.Pause}, &holds); err != nil {
			return err
		}
		if holds {
			pause = v.Pause
		}
	}
	name, which := "park", any(v.Seq)
	if v.FromParked {
		name, which = "park_again", id
	}
	_, err := c.exec(name, s.sink, which, string(v.Reason), v.Attempts, v.Due.Microseconds(), v.Tried != nil, string(v.Code), cut(v.Error), pause)
	return err
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
