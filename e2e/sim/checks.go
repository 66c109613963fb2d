package sim

import (
	"slices"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// checks are the promises.
type checks struct {
	broken []string
}

// stored is told of each copy that the broker has stored, at once. Nothing that was not committed may come, nor anything before its
// time; of a key nothing may come for the first time before what was committed when it was written; a further copy needs a reason.
func (w *world) stored(m membroker.Message) {
	e := w.entryOf(m.ID)
	w.counts["arrived"]++
	w.trace.note(20, uint64(e.n), uint64(m.Epoch)) //nolint:gosec // neither is negative
	w.trace.say(w, "arrives, copy %d: %s", e.copies+1, e)
	if e.lost {
		w.counts["arrived, and lost by the database"]++
		e.copies++
		return
	}
	if e.committed == 0 {
		w.fail("phantom: %s was never committed", e)
	}
	if e.due > w.now {
		w.fail("%s came %s before its time", e, e.due-w.now)
	}
	e.copies++
	if r := w.sender; r != nil && r.alive() && e.openIn == r && e.countedIn == nil && !e.slow {
		e.countedIn = r
		if r.window++; r.window > w.knobs.rules.Messages {
			w.recount(r)
		}
	}
	if e.copies == 1 {
		w.checkOrder(e)
		return
	}
	if w.knobs.compare && e.key != nil {
		w.fail("%s is stored twice, though the broker compares", e)
	}
	if e.allowed == 0 {
		w.fail("duplicate: %s came again, and nothing that went wrong explains it", e)
		return
	}
	e.allowed--
	w.counts["duplicates: "+e.cause]++
}

func (w *world) checkOrder(e *entry) {
	if e.key == nil || e.due > 0 {
		return
	}
	e.key.remove(e)
	for i := 0; i < len(e.key.pending); i++ {
		a := e.key.pending[i]
		if a.n > e.n {
			return
		}
		if a.committed == 0 || a.committed > e.written || a.excused || a.topic == topicSkips && a.failed {
			continue
		}
		if a.discarded > 0 {
			e.key.pending = slices.Delete(e.key.pending, i, i+1)
			i--
		} else {
			state, _ := w.admin.State(ctx, sinkName, a.receipt)
			w.fail("order: %s came before %s (%s), which was committed in step %d, before the other one was written in step %d", e, a, state, a.committed, e.written)
		}
	}
}

// recount looks closer where more seems to be published and not settled than the window allows: what was not answered in time is
// sent again, and counts with its next copy.
func (w *world) recount(r *run) {
	n := 0
	for _, e := range r.sentOut {
		if e.openIn == r && e.countedIn == r && e.cause != "uncertain" && e.cause != "timeout" && !w.overdue(e) {
			n++
		}
	}
	if n > w.knobs.rules.Messages {
		w.fail("%s has published %d messages that are not settled, its window is %d", r.name, n, w.knobs.rules.Messages)
	}
}

// allow explains a further copy of a message.
func (e *entry) allow(cause string) {
	e.allowed++
	e.cause = cause
}

// rough notes that a run has ended, or forgotten what it did, without settling: what it has sent may come again, once, and no more
// than a window of it.
func (r *run) rough(cause string) {
	w := r.w
	n := 0
	for _, e := range r.sentOut {
		if e.openIn == r {
			e.openIn, e.countedIn, e.granted = nil, nil, true
			e.allow(cause)
			n++
		}
	}
	if n > 0 {
		w.reach(cause + " with work in flight")
	}
	r.sentOut, r.window = nil, 0
	if w.knobs.coarse { // the cursor stands before the first read that is not settled whole
		for _, rd := range r.reads {
			for _, p := range rd.parts {
				for _, e := range p.entries[:p.n] {
					e.allow(cause)
				}
			}
		}
	}
	r.reads = nil
}

// noteTakeOvers notes which relays are gone from the database without having left.
func (w *world) noteTakeOvers() {
	w.lives = slices.DeleteFunc(w.lives, func(r *run) bool {
		if w.db.Knows(r.id) {
			return false
		}
		w.trace.note(12, r.no)
		w.trace.say(w, "%s (run %d) is taken over", r.name, r.no)
		w.reach("take-over")
		r.rough("take-over")
		return true
	})
}

func (w *world) gone(r *run) {
	w.lives = slices.DeleteFunc(w.lives, func(o *run) bool { return o == r })
}

func (w *world) noteLease(r *run, lease store.Lease) {
	w.trace.note(13, r.no, uint64(len(lease.Owned)), uint64(lease.Surplus)) //nolint:gosec // none is negative
	if lease.Surplus > 0 {
		w.reach("surplus")
	}
}

// noteRead remembers what a read gave, and which of it was late.
func (w *world) noteRead(r *run, page *store.Page, err error) {
	if err != nil {
		w.trace.note(14, r.no)
		return
	}
	rd := &read{no: page.No, parts: map[int]*readPart{}}
	late, all := 0, 0
	for _, part := range page.Parts {
		rp := &readPart{}
		for i := range part.Records {
			rec := &part.Records[i]
			e := w.entryOf(rec.ID)
			rp.entries = append(rp.entries, e)
			all++
			if rec.Seq < r.highest(part.Partition) {
				late++
			}
			w.trace.note(15, uint64(e.n))
		}
		rd.parts[part.Partition] = rp
		rd.open++
		w.trace.say(w, "%s is given by read %d: %v", r.name, page.No, rp.entries)
	}
	if late > 0 {
		w.reach("late row")
		if late >= w.knobs.page || page.More && late == all {
			w.reach("late rows in pages")
		}
	}
	if rd.open > 0 {
		r.reads = append(r.reads, rd)
	}
}

// highest is the highest number that the reads in memory have given of a partition.
func (r *run) highest(partition int) (seq int64) {
	for _, rd := range r.reads {
		if p := rd.parts[partition]; p != nil {
			for _, e := range p.entries {
				seq = max(seq, e.receipt.Seq)
			}
		}
	}
	return seq
}

func (w *world) noteFollowers(records []store.Parked) {
	if len(records) == 0 {
		return
	}
	w.reach("parked release")
	for i := range records {
		if k := w.entryOf(records[i].ID).key; k != nil {
			k.line = w.steps
		}
	}
}

// noteSettled takes what a settlement has settled off the run's account.
func (w *world) noteSettled(r *run, s *store.Settlement) {
	w.trace.note(16, r.no, uint64(len(s.Done)), uint64(len(s.Verdicts)))
	settled := func(e *entry) {
		if e.openIn == r {
			e.openIn = nil
		}
		if e.countedIn == r {
			e.countedIn = nil
			r.window--
		}
	}
	slow := map[*entry]bool{} // parked while in flight: their answers are awaited
	for i := range s.Verdicts {
		if v := &s.Verdicts[i]; v.To == store.Park && !v.FromParked && v.Code == broker.CodePublishTimeout && v.Tried == nil {
			slow[w.entryOf(v.ID)] = true
			w.reach("parked in flight")
		}
	}
	for _, d := range s.Done {
		for _, rd := range r.reads {
			if rd.no != d.Read || rd.parts[d.Partition] == nil {
				continue
			}
			p := rd.parts[d.Partition]
			for ; p.n < d.N; p.n++ {
				e := p.entries[p.n]
				if e.slow = slow[e]; !e.slow {
					settled(e)
				} else if e.countedIn == r {
					e.countedIn = nil
					r.window--
				}
			}
			if p.n == len(p.entries) {
				rd.open--
			}
		}
	}
	n := 0
	for n < len(r.reads) && r.reads[n].open == 0 {
		n++
	}
	r.reads = r.reads[n:]
	for i := range s.Verdicts {
		v := &s.Verdicts[i]
		w.reach(verdict(v))
		if v.FromParked && v.To != store.Park {
			settled(w.entryOf(v.ID))
		}
	}
	r.sentOut = slices.DeleteFunc(r.sentOut, func(e *entry) bool { return e.openIn != r })
}

func verdict(v *store.Verdict) string {
	switch v.To {
	case store.Park:
		return "parked " + string(v.Reason)
	case store.Dead:
		if v.Blocks {
			return "dead, blocks"
		}
		return "dead"
	default:
		return "out"
	}
}

// sayVerdicts traces what a settlement says.
func (w *world) sayVerdicts(r *run, s *store.Settlement) {
	if w.trace.to == nil {
		return
	}
	for i := range s.Verdicts {
		v := &s.Verdicts[i]
		w.trace.say(w, "%s settles %s: %s %s, from parked %v", r.name, w.entryOf(v.ID), verdict(v), v.Code, v.FromParked)
	}
}

// foreign are the partitions of a settlement that are not the run's any more, as the database has them.
func (w *world) foreign(r *run, s *store.Settlement) map[int]memstore.Holding {
	var all map[int]memstore.Holding
	look := func(partition int) {
		if h := w.db.Holding(sinkName, partition); h.Relay != r.id {
			if all == nil {
				all = map[int]memstore.Holding{}
			}
			all[partition] = h
		}
	}
	for _, d := range s.Done {
		look(d.Partition)
	}
	for i := range s.Verdicts {
		look(s.Verdicts[i].Partition)
	}
	return all
}

// checkForeign: who has lost a partition changes nothing of it.
func (w *world) checkForeign(r *run, before map[int]memstore.Holding) {
	for partition, was := range before {
		w.reach("stale settle")
		if is := w.db.Holding(sinkName, partition); is != was {
			w.fail("stale owner: %s settled partition %d, which is not its own: %+v became %+v", r.name, partition, was, is)
		}
	}
}

// checkPublish: nothing goes out but while the lease lasts, to the owner's knowledge and in truth, and nothing that is known to be paused.
func (w *world) checkPublish(r *run, e *core.Publish) {
	if own := r.own() - r.began; own >= r.until-w.knobs.rules.LeaseMargin {
		w.fail("%s publishes %s after its lease", r.name, own-r.until+w.knobs.rules.LeaseMargin)
	}
	pauses := r.machine.Pauses()
	for i := range e.Batch {
		env := &e.Batch[i]
		m := w.entryOf(env.ID)
		if h := w.db.Holding(sinkName, env.Partition); h.Relay != r.id && (w.wentBack == 0 || r.leased > w.wentBack) {
			w.fail("%s publishes %s, whose partition is another's (%+v)", r.name, m, h)
		}
		if store.Holding(pauses, env.Topic, env.Key) != nil {
			w.fail("%s publishes %s, which is known to be paused", r.name, m)
		}
		if m.sent > 0 && !m.answered && w.overdue(m) { // nobody waits for the answer to that copy any more
			m.spent++
			if !m.granted {
				m.allow("timeout")
			}
		}
		if env.Attempt > 1+m.spent {
			w.fail("%s publishes %s as attempt %d, and %d answers may have cost it one", r.name, m, env.Attempt, m.spent)
		}
		if m.openIn != r {
			r.sentOut = append(r.sentOut, m)
		}
		m.openIn, m.sent, m.granted, m.answered, m.slow = r, w.now, false, false, false
		w.trace.note(17, r.no, uint64(m.n))
		w.trace.say(w, "%s sends %s, attempt %d", r.name, m, env.Attempt)
	}
}

// overdue reports whether the machine may have given up waiting for the answer to the last copy, whatever its clock is like.
func (w *world) overdue(m *entry) bool { return w.now-m.sent >= w.knobs.rules.PublishTimeout*9/10 }

// answered notes an answer: one that comes too late is none, and the message is tried again.
func (w *world) answered(m *entry, sent time.Duration, o broker.Outcome) {
	if m.sent == sent {
		m.answered = true
	}
	if o == broker.Retry || o == broker.Rejected || o == broker.Uncertain { // no other one costs an attempt
		m.spent++
	}
	if o > broker.Duplicate {
		m.failed = true
	} else if m.sent == sent && w.overdue(m) && !m.granted {
		m.granted = true
		m.allow("timeout")
	}
}

// checkMachine: memory is bounded.
func (w *world) checkMachine(r *run) {
	if r.machine == nil {
		return
	}
	messages, _ := r.machine.Backlog()
	if most := 6*w.knobs.page + w.knobs.rules.Messages; messages > most {
		w.fail("%s holds %d messages, more than %d", r.name, messages, most)
	}
	if r.machine.BreakerOpen() {
		w.reach("breaker open")
	}
}

// note takes what a machine is told into the trace.
func (w *world) note(r *run, events []core.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case core.Published:
			for _, a := range e.Answers {
				w.trace.note(18, r.no, a.Ticket, uint64(a.Index), uint64(a.Result.Outcome)) //nolint:gosec // no index is negative
				w.trace.say(w, "%s: answer %d of batch %d: %s", r.name, a.Index, a.Ticket, a.Result.Outcome)
				if a.Result.Outcome == broker.Uncertain {
					w.reach("uncertain")
				}
			}
		case core.Leased:
			w.trace.note(19, r.no)
		case core.Settled:
			w.trace.note(21, r.no, flag(e.Err != nil))
			w.trace.say(w, "%s: settled: %v", r.name, e.Err)
		case core.ReadDone:
			w.trace.note(22, r.no, uint64(len(e.Page.Parts)), flag(e.Err != nil))
			w.trace.say(w, "%s: read %d of %d partitions: %v", r.name, e.Page.No, len(e.Page.Parts), e.Err)
		case core.HeadsDone:
			w.trace.note(23, r.no, uint64(len(e.Heads.Due)), flag(e.Err != nil))
			w.trace.say(w, "%s: %d heads: %v", r.name, len(e.Heads.Due), e.Err)
		case core.FollowersDone:
			w.trace.note(24, r.no, uint64(len(e.Records)), flag(e.Err != nil))
			w.trace.say(w, "%s: %d followers of %s: %v", r.name, len(e.Records), e.Key.Key, e.Err)
		}
	}
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// brokerFault is what goes wrong with one message.
func (w *world) brokerFault(_ int, env broker.Envelope) membroker.Fault {
	e := w.entryOf(env.ID)
	if e.poison {
		e.failed = true
		return membroker.Fault{Outcome: broker.Rejected}
	}
	if w.ending {
		return membroker.Fault{}
	}
	k := &w.knobs.message
	switch {
	case w.chance(k.retry):
		e.failed = true
		return membroker.Fault{Outcome: broker.Retry}
	case w.chance(k.unavailable):
		return membroker.Fault{Outcome: broker.Unavailable}
	case w.chance(k.throttled):
		w.reach("throttled")
		return membroker.Fault{Outcome: broker.Throttled, After: w.upTo(time.Second)}
	case w.chance(k.uncertain):
		e.failed = true
		f := membroker.Fault{Outcome: broker.Uncertain, Delivery: oneOf(w, membroker.Dropped, membroker.Stored)}
		if f.Delivery == membroker.Stored {
			e.allow("uncertain")
			w.reach("lost acknowledgement")
		}
		return f
	case w.chance(k.late):
		e.failed = true
		e.allow("uncertain")
		w.reach("late delivery")
		w.after(w.upTo(5*time.Second), nil, func() { w.broker.DeliverLate() })
		return membroker.Fault{Outcome: broker.Uncertain, Delivery: membroker.Late}
	case w.chance(k.stall):
		e.failed = true
		w.reach("no answer")
		f := membroker.Fault{Stall: true, Delivery: oneOf(w, membroker.Dropped, membroker.Stored)}
		if f.Delivery == membroker.Stored {
			e.allow("no answer")
		}
		return f
	}
	return membroker.Fault{}
}
