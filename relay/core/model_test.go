package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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
	awaits  bool                    // a hint was asked for
	once    bool                    // machines make one pass
	lasting bool                    // machines are not lost, nor asked for partitions
	mark    int64                   // the last number when the machine was made
	tried   map[int64]bool          // what the machine has sent
	before  []*row                  // what was committed when the machine was made
	due     []*row                  // what was due then
	ended   *Stopped
	pauses  []store.Pause
	pauseNo int64

	// broker
	first map[outbox.ID]bool
	last  map[string]int
	bad   []string
	stats map[string]int
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
	w.begin()
	w.m = New(Rules{
		Messages: w.window, Page: 1 + w.rng.IntN(30), SettleEvery: 20 * time.Millisecond, Pipeline: w.pipeline,
		PublishTimeout: publishTimeout, Retry: Retry{First: 50 * time.Millisecond, Max: time.Second, Attempts: 3},
		Breaker: Breaker{First: 50 * time.Millisecond, Max: time.Second}, Rand: w.rng, Once: w.once,
		Hints: w.machine%2 == 0,
	})
	w.held = map[int]bool{}
	for p := range worldParts {
		w.held[p] = true
		w.epochs[p]++
	}
	w.step(w.lease(0))
}

func (w *world) lease(surplus int) Event {
	lease := store.Lease{Surplus: min(surplus, len(w.held)), Unattended: worldParts - len(w.held)}
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
	case Stopped:
		w.ended = &e
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
		w.hint()
		return
	}
	w.seq++
	w.next[key]++
	r := &row{n: w.next[key]}
	r.rec.Seq, r.rec.Key, r.rec.Topic = w.seq, key, fmt.Sprintf("t.%d", w.rng.IntN(3))
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
		w.hint()
	}
}

// hint tells the machine of a commit where it asked for that, and sometimes where it did not; many hints are lost.
func (w *world) hint() {
	if (w.awaits || w.rng.IntN(10) == 0) && w.rng.IntN(2) == 0 {
		w.stats["hints"]++
		w.awaits = false
		w.later(func() Event { return Woken{} })
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

// holdBack pauses something, or resumes it.
func (w *world) holdBack() {
	if n := len(w.pauses); n > 0 && w.rng.IntN(3) > 0 {
		i := w.rng.IntN(n)
		w.pauses = slices.Delete(slices.Clone(w.pauses), i, i+1)
		w.stats["resumed"]++
		return
	}
	w.pauseNo++
	p := store.Pause{ID: w.pauseNo}
	switch w.rng.IntN(8) {
	case 0:
		p.Kind = store.PauseSink
	case 1:
		p.Kind, p.Name = store.PauseTopic, "t.*"
	case 2, 3:
		p.Kind, p.Name = store.PauseTopic, fmt.Sprintf("t.%d", w.rng.IntN(3))
	default:
		p.Kind, p.Name = store.PauseKey, fmt.Sprintf("k%d", 1+w.rng.IntN(4))
	}
	w.pauses = append(w.pauses, p)
	w.stats["paused "+string(p.Kind)]++
}

func (w *world) isPaused(id int64) bool {
	return slices.ContainsFunc(w.pauses, func(p store.Pause) bool { return p.ID == id })
}

// turn lets one thing happen.
func (w *world) turn(keys int) {
	switch n := w.rng.IntN(1000); {
	case n < 150 && keys > 0:
		w.write(keys)
	case n < 170:
		w.person()
	case n < 172 && w.faults && !w.once:
		w.holdBack()
	case n < 174:
		w.reclaim()
		surplus := 0
		if w.faults && !w.lasting {
			surplus = w.rng.IntN(3)
		}
		w.step(w.lease(surplus))
	case n < 175 && w.faults && !w.lasting:
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
	seeds := 120
	if testing.Short() {
		seeds = 50
	}
	total := map[string]int{}
	for seed := range uint64(seeds) {
		w := newWorld(seed)
		for range 6000 {
			w.turn(4)
		}
		w.faults, w.pauses = false, nil
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
	for _, state := range []string{"crashes", "dead", "requeued", "followers", "parked retry", "parked behind", "parked paused", "duplicates", "given back", "hints", "promises", "paused sink", "resumed"} {
		if total[state] == 0 {
			t.Errorf("no run reached %q", state)
		}
	}
}
