package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// The database and the broker of a world.

type row struct {
	rec       store.Record
	n         int
	committed bool
	read      bool // handed over by the session's memory
	settled   bool // durable
	by        int  // the machine whose copy came last
	uncertain bool // a copy of it was not answered, or not in time
	sent      time.Duration
}

type parkedRow struct {
	row      *row
	due      time.Duration
	hasDue   bool
	pause    int64 // until this pause ends
	attempts int
	before   int
}

func (w *world) readPage(room store.Room) Event {
	w.readNo++
	page := store.Page{No: w.readNo}
	w.reads[w.readNo] = map[int][]*row{}
	left := room.Messages
	for p := range worldParts {
		if !w.held[p] {
			continue
		}
		part := store.Part{Owned: store.Owned{Partition: p, Epoch: w.epochs[p]}}
		fresh := int64(0) // what is above is; the rest is late
		for _, r := range w.rows {
			if r.read && r.rec.Partition == p {
				fresh = r.rec.Seq
			}
		}
		for _, r := range w.rows { // in the order of seq
			if r.committed && !r.read && r.rec.Partition == p && left > 0 && (r.rec.Seq < fresh || slices.Contains(room.Partitions, p)) {
				left--
				r.read = true
				rec := r.rec
				rec.Blocked = len(w.parked[rec.Key])+len(w.dead[rec.Key]) > 0 && rec.Key != ""
				part.Records = append(part.Records, rec)
				w.reads[w.readNo][p] = append(w.reads[w.readNo][p], r)
			}
		}
		if len(part.Records) > 0 {
			page.Parts = append(page.Parts, part)
		}
	}
	page.More = left == 0
	if room.Await && w.rng.IntN(4) > 0 {
		w.awaits, page.Awaited = true, 2*time.Second
		w.stats["promises"]++
	}
	if room.Mark {
		page.Mark, page.Past = w.mark, w.past()
	}
	return ReadDone{Page: page}
}

func (w *world) settle(s store.Settlement) Event {
	if w.faults && w.rng.IntN(30) == 0 {
		return Settled{Err: outbox.ErrNoTransaction} // nothing was done
	}
	for _, d := range s.Done {
		if len(w.reads[d.Read][d.Partition]) < d.N {
			w.fault("done %+v of a read that gave %d", d, len(w.reads[d.Read][d.Partition]))
			continue
		}
		for _, r := range w.reads[d.Read][d.Partition][:d.N] {
			r.settled = true
			delete(w.open, r.rec.Seq)
		}
	}
	gone := 0
	for _, v := range s.Verdicts {
		delete(w.open, v.Seq)
		gone += w.verdict(v)
	}
	w.promote()
	return Settled{Settled: store.Settled{Gone: gone}}
}

func (w *world) verdict(v store.Verdict) (gone int) {
	i := slices.IndexFunc(w.parked[v.Key], func(p *parkedRow) bool { return p.row.rec.Seq == v.Seq })
	if v.FromParked && i < 0 {
		return 1
	}
	if !v.FromParked && i >= 0 {
		w.fault("message %d of key %s was parked twice", v.Seq, v.Key)
	}
	var p *parkedRow
	if i >= 0 {
		p = w.parked[v.Key][i]
	} else {
		p = &parkedRow{row: w.find(v.Seq)}
	}
	p.attempts = v.Attempts
	p.hasDue, p.due, p.pause = v.Reason == store.ReasonRetry, w.now+v.Due, 0
	if v.Reason == store.ReasonPaused {
		p.hasDue, p.pause = true, v.Pause
	}
	if i >= 0 && v.To != store.Park {
		w.parked[v.Key] = slices.Delete(w.parked[v.Key], i, i+1)
	}
	switch {
	case v.To == store.Park && i < 0:
		w.stats["parked "+string(v.Reason)]++
		w.parked[v.Key] = append(w.parked[v.Key], p)
	case v.To == store.Dead:
		w.stats["dead"]++
		if (v.Key != "") != v.Blocks {
			w.fault("blocks is %v for key %q", v.Blocks, v.Key)
		}
		w.dead[v.Key] = append(w.dead[v.Key], p)
	}
	return 0
}

// promote keeps the rule of the head.
func (w *world) promote() {
	for key, line := range w.parked {
		slices.SortFunc(line, func(a, b *parkedRow) int { return cmp.Compare(a.row.rec.Seq, b.row.rec.Seq) })
		if key == "" {
			continue
		}
		for i, p := range line {
			switch {
			case i > 0 || len(w.dead[key]) > 0:
				p.hasDue = false
			case !p.hasDue:
				p.hasDue, p.due, p.pause = true, w.now, 0
			}
		}
	}
}

func (w *world) find(seq int64) *row {
	i, ok := slices.BinarySearchFunc(w.rows, seq, func(r *row, seq int64) int { return cmp.Compare(r.rec.Seq, seq) })
	if !ok {
		panic(fmt.Sprint("no message ", seq))
	}
	return w.rows[i]
}

func (w *world) heads(most int) Event {
	var h store.Heads
	for _, key := range sortedKeys(w.parked) {
		for _, p := range w.parked[key] {
			if p.hasDue && w.isPaused(p.pause) {
				continue
			}
			if p.hasDue && p.due <= w.now && len(h.Due) < most {
				head := w.parkedMessage(p)
				head.Overdue = w.now - p.due
				h.Due = append(h.Due, head)
			} else if p.hasDue {
				if d := p.due - w.now; h.Next == 0 || d < h.Next {
					h.Next = d
				}
			}
		}
	}
	h.Pauses = slices.Clone(w.pauses)
	return HeadsDone{Heads: h}
}

func (w *world) parkedMessage(p *parkedRow) store.Parked {
	return store.Parked{Record: p.row.rec.Record, Place: store.Place{Order: p.row.rec.Seq, Seq: p.row.rec.Seq}, Attempts: p.attempts, Before: p.before}
}

func (w *world) followers(e ReadFollowers) Event {
	done := FollowersDone{Key: e.Key}
	if len(w.dead[e.Key.Key]) == 0 {
		for _, p := range w.parked[e.Key.Key] {
			if len(done.Records) < e.Room.Messages {
				done.Records = append(done.Records, w.parkedMessage(p))
			}
		}
	}
	w.stats["followers"] += len(done.Records)
	return done
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// publish sends each message to arrive at some later time. Messages of one key in one batch of a pipeline arrive in order,
// and when one fails, those sent before its answer has come fail too.
func (w *world) publish(e Publish) {
	machine := w.machine
	for i, env := range e.Batch {
		outcome, stores := w.draw()
		r := w.find(env.Seq)
		w.tried[env.Seq] = true
		if p := store.Holding(w.m.Pauses(), env.Topic, env.Key); p != nil {
			w.fault("message %d of key %s was sent, although %s %s is known to be paused", env.Seq, env.Key, p.Kind, p.Name)
		}
		if outcome == broker.Uncertain || r.by == machine && w.now-r.sent >= publishTimeout {
			r.uncertain = true
		}
		r.sent = w.now
		if w.pipeline && env.Key != "" {
			if w.failing[env.Key] > 0 && (outcome == broker.Accepted || stores) {
				outcome, stores = broker.Retry, false
			}
			if outcome != broker.Accepted {
				w.failing[env.Key]++
			}
		}
		answer := Published{Answers: []Answer{{Ticket: e.Ticket, Index: i, Result: broker.Result{Outcome: outcome, Code: "test/code"}}}}
		if w.pipeline && stores {
			w.arrive(env, machine) // in order: at once
			stores = false
		}
		w.actions = append(w.actions, action{machine: machine, do: func() *action {
			if stores {
				w.arrive(env, machine)
			}
			return &action{machine: machine, do: func() *action {
				if w.pipeline && env.Key != "" && outcome != broker.Accepted && machine == w.machine {
					w.failing[env.Key]--
				}
				if machine == w.machine && (w.pipeline || !(outcome == broker.Uncertain && w.rng.IntN(2) == 0)) { // or it never answers
					w.step(answer)
				}
				return nil
			}}
		}})
	}
}

func (w *world) draw() (o broker.Outcome, stores bool) {
	if !w.faults {
		return broker.Accepted, true
	}
	switch n := w.rng.IntN(100); {
	case n < 8:
		return broker.Retry, false
	case n < 10:
		return broker.Rejected, false
	case n < 13:
		return broker.Unavailable, false
	case n < 14:
		return broker.Throttled, false
	case n < 18:
		return broker.Uncertain, w.rng.IntN(2) == 0
	}
	return broker.Accepted, true
}

func (w *world) arrive(env broker.Envelope, machine int) {
	w.stats["arrived"]++
	r := w.find(env.Seq)
	before := r.by
	r.by = machine
	if machine == w.machine && !r.uncertain {
		if w.open[env.Seq] = true; len(w.open) > w.window {
			w.fault("%d messages are published and not settled, the window is %d", len(w.open), w.window)
		}
	}
	if !r.committed {
		w.fault("phantom %d", env.Seq)
	}
	if w.first[env.ID] {
		w.stats["duplicates"]++
		if before == machine && !r.uncertain {
			w.fault("message %d of key %q came twice, although nothing had failed", env.Seq, env.Key)
		}
		return
	}
	w.first[env.ID] = true
	if env.Key != "" {
		if r.n < w.last[env.Key] {
			w.fault("key %s: message %d (seq %d) came after message %d", env.Key, r.n, env.Seq, w.last[env.Key])
		}
		w.last[env.Key] = max(w.last[env.Key], r.n)
	}
}
