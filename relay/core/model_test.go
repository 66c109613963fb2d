package core

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// world is a database, a broker and people around one machine, all of them slow and unreliable: everything that the
// machine asks for is done at some later moment and answered at another one after that, in any order, and the machine
// may be lost at any time. A seed replays exactly.
type world struct {
	rng      *rand.Rand
	m        *Machine
	machine  int // number of the machine: what was asked by an older one is not answered
	now      time.Duration
	timer    time.Duration
	actions  []action
	pipeline bool
	faults   bool
	held     map[int]bool  // partitions of the machine
	epochs   map[int]int64 // of their owners

	// database
	rows    []*row
	seq     int64
	readNo  uint64
	reads   map[uint64]map[int][]*row
	parked  map[string][]*parkedRow // by key, in line order
	dead    map[string][]*parkedRow // by key: blocking dead letters
	next    map[string]int          // per key: the next n
	writing map[string]*row         // per key: the row of the open transaction
	failing map[string]int          // pipeline: failures of a key whose answers are on their way
	open    map[int64]bool          // what the machine has published, and is not settled
	window  int                     // the most that this may be

	// broker
	first map[outbox.ID]bool
	last  map[string]int
	bad   []string
	stats map[string]int
}

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
	attempts int
	before   int
}

// action is something on its way; do returns what comes of it.
type action struct {
	machine int
	do      func() *action
}

const (
	worldParts     = 4
	publishTimeout = 3 * time.Second
)

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 7)), timer: never, epochs: map[int]int64{}, faults: true, reads: map[uint64]map[int][]*row{},
		parked: map[string][]*parkedRow{}, dead: map[string][]*parkedRow{}, next: map[string]int{}, writing: map[string]*row{},
		first: map[outbox.ID]bool{}, last: map[string]int{}, stats: map[string]int{},
	}
	w.pipeline = w.rng.IntN(3) == 0
	w.start()
	return w
}

// start makes a new machine, which knows what the database knows.
func (w *world) start() {
	w.machine++
	w.failing = map[string]int{}
	w.open, w.window = map[int64]bool{}, 1+w.rng.IntN(20)
	for _, r := range w.rows {
		r.read = r.settled
	}
	w.reads = map[uint64]map[int][]*row{}
	w.now = 0
	w.m = New(Rules{
		Messages: w.window, Page: 1 + w.rng.IntN(30), SettleEvery: 20 * time.Millisecond, Pipeline: w.pipeline,
		PublishTimeout: publishTimeout, Retry: Retry{First: 50 * time.Millisecond, Max: time.Second, Attempts: 3},
		Breaker: Breaker{First: 50 * time.Millisecond, Max: time.Second}, Rand: w.rng,
	})
	w.held = map[int]bool{}
	for p := range worldParts {
		w.held[p] = true
		w.epochs[p]++
	}
	w.step(w.lease(0))
}

func (w *world) lease(surplus int) Event {
	lease := store.Lease{Surplus: min(surplus, len(w.held))}
	for p := range worldParts {
		if w.held[p] {
			lease.Owned = append(lease.Owned, store.Owned{Partition: p, Epoch: w.epochs[p]})
		}
	}
	return Leased{Lease: lease, Until: never}
}

// giveBack frees partitions from where they are settled; somebody has them, and lets them go again, without a word.
func (w *world) giveBack(partitions []int) Event {
	w.stats["given back"] += len(partitions)
	for _, p := range partitions {
		delete(w.held, p)
		for _, parts := range w.reads {
			delete(parts, p)
		}
		for _, r := range w.rows {
			if r.rec.Partition == p {
				if r.read && !r.settled && r.by == w.machine && !r.uncertain {
					w.fault("message %d was published, and is not settled where partition %d is given back", r.rec.Seq, p)
				}
				r.read = r.settled
			}
		}
	}
	return GaveBack{Partitions: partitions}
}

// reclaim takes what is free, with new epochs.
func (w *world) reclaim() {
	for p := range worldParts {
		if !w.held[p] && w.rng.IntN(2) == 0 {
			w.held[p] = true
			w.epochs[p]++
		}
	}
}

func (w *world) step(events ...Event) {
	for _, e := range w.m.Step(w.now, events...) {
		w.effect(e)
	}
}

// later schedules f, and then the event that it returns.
func (w *world) later(f func() Event) {
	machine := w.machine
	w.actions = append(w.actions, action{machine: machine, do: func() *action {
		e := f()
		return &action{machine: machine, do: func() *action {
			if e != nil && machine == w.machine {
				w.step(e)
			}
			return nil
		}}
	}})
}

func (w *world) effect(e Effect) {
	machine := w.machine
	switch e := e.(type) {
	case Timer:
		w.timer = e.At
	case Probe:
		w.later(func() Event { return Probed{} })
	case Read:
		w.later(func() Event {
			if machine != w.machine {
				return nil
			}
			return w.readPage(e.Room)
		})
	case Settle:
		w.later(func() Event {
			if machine != w.machine {
				return nil // fenced
			}
			return w.settle(e.Settlement)
		})
	case GiveBack:
		w.later(func() Event {
			if machine != w.machine {
				return nil
			}
			return w.giveBack(e.Partitions)
		})
	case ReadHeads:
		w.later(func() Event { return w.heads(e.Max) })
	case ReadFollowers:
		w.later(func() Event { return w.followers(e) })
	case Publish:
		w.publish(e)
	}
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
		for _, r := range w.rows { // in the order of seq
			if r.committed && !r.read && r.rec.Partition == p && left > 0 {
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
	p.hasDue, p.due = v.Reason == store.ReasonRetry, w.now+v.Due
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
				p.hasDue, p.due = true, w.now
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
			if p.hasDue && p.due <= w.now && len(h.Due) < most {
				h.Due = append(h.Due, w.parkedMessage(p))
			} else if p.hasDue {
				if d := p.due - w.now; h.Next == 0 || d < h.Next {
					h.Next = d
				}
			}
		}
	}
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

func (w *world) fault(format string, args ...any) {
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
}

// write begins or ends the transaction of a key: the seq is drawn when it begins, the message is visible when it ends.
func (w *world) write(keys int) {
	key := ""
	if k := w.rng.IntN(keys + 1); k > 0 {
		key = fmt.Sprintf("k%d", k)
	}
	if open := w.writing[key]; open != nil {
		open.committed = true
		delete(w.writing, key)
		return
	}
	w.seq++
	w.next[key]++
	r := &row{n: w.next[key]}
	r.rec.Seq, r.rec.Key, r.rec.Topic = w.seq, key, "t"
	r.rec.Partition = len(key) + int(w.seq)*(1-min(1, len(key)))
	if key != "" {
		r.rec.Partition = int(key[1])
	}
	r.rec.Partition %= worldParts
	r.rec.ID = outbox.ID{12: byte(w.seq >> 16), 13: byte(w.seq >> 8), 14: byte(w.seq), 15: 1}
	w.rows = append(w.rows, r)
	w.writing[key] = r
	if w.rng.IntN(2) == 0 {
		r.committed = true
		delete(w.writing, key)
	}
}

// person requeues a dead letter.
func (w *world) person() {
	for _, key := range sortedKeys(w.dead) {
		if len(w.dead[key]) == 0 || w.rng.IntN(2) == 0 {
			continue
		}
		p := w.dead[key][0]
		w.dead[key] = w.dead[key][1:]
		p.before, p.hasDue, p.due = p.attempts, true, w.now
		w.parked[key] = append(w.parked[key], p)
		w.promote()
		w.stats["requeued"]++
		return
	}
}

// turn lets one thing happen.
func (w *world) turn(keys int) {
	switch n := w.rng.IntN(1000); {
	case n < 150 && keys > 0:
		w.write(keys)
	case n < 170:
		w.person()
	case n < 174:
		w.reclaim()
		surplus := 0
		if w.faults {
			surplus = w.rng.IntN(3)
		}
		w.step(w.lease(surplus))
	case n < 175 && w.faults:
		w.stats["crashes"]++
		w.start()
		for _, line := range w.parked { // times are of the machine's clock here
			for _, p := range line {
				p.due = 0
			}
		}
	case n < 250 || len(w.actions) == 0:
		w.now += time.Duration(w.rng.IntN(40)) * time.Millisecond
		if w.now >= w.timer {
			w.timer = never
			w.step(Tick{})
		}
	default:
		i := w.rng.IntN(len(w.actions))
		a := w.actions[i]
		w.actions = slices.Delete(w.actions, i, i+1)
		if next := a.do(); next != nil {
			w.actions = append(w.actions, *next)
		}
	}
}

func (w *world) drained() bool {
	for _, r := range w.rows {
		if r.committed && !r.settled {
			return false
		}
	}
	for _, m := range []map[string][]*parkedRow{w.parked, w.dead} {
		for _, line := range m {
			if len(line) > 0 {
				return false
			}
		}
	}
	return true
}

// TestTheMachineKeepsItsPromisesInAnUnreliableWorld: nothing is lost, nothing comes that was not committed, first copies
// of a key come in order, a message comes twice only after a crash or an answer that did not come, no more than the window
// is published and not settled, and when the faults end everything is published and no state is left.
func TestTheMachineKeepsItsPromisesInAnUnreliableWorld(t *testing.T) {
	t.Parallel()
	seeds := 300
	if testing.Short() {
		seeds = 50
	}
	total := map[string]int{}
	for seed := range uint64(seeds) {
		w := newWorld(seed)
		for range 6000 {
			w.turn(4)
		}
		w.faults = false
		for key, r := range w.writing {
			r.committed = true
			delete(w.writing, key)
		}
		for i := 0; i < 60_000 && !w.drained(); i++ {
			w.turn(0)
		}
		for range 3000 {
			w.turn(0)
		}
		for _, r := range w.rows {
			if r.committed && !w.first[r.rec.ID] {
				w.fault("lost message %d of key %q (settled %v)", r.rec.Seq, r.rec.Key, r.settled)
			}
		}
		if messages, keys := w.m.Backlog(); messages != 0 || keys != 0 || !w.drained() {
			w.fault("after the end: %d messages and %d keys in memory, drained: %v", messages, keys, w.drained())
		}
		if w.m.window != (load{}) || w.m.retained != (load{}) {
			w.fault("after the end: window %v, retained %v", w.m.window, w.m.retained)
		}
		for k, n := range w.stats {
			total[k] += n
		}
		if len(w.bad) > 0 {
			t.Fatalf("seed %d (pipeline %v): %q\n%v", seed, w.pipeline, w.bad[:min(5, len(w.bad))], w.stats)
		}
	}
	t.Log(total)
	for _, state := range []string{"crashes", "dead", "requeued", "followers", "parked retry", "parked behind", "duplicates", "given back"} {
		if total[state] == 0 {
			t.Errorf("no run reached %q", state)
		}
	}
}
