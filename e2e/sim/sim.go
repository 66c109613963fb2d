// Package sim runs several relays' machines (relay/core) against the model database (memstore) and the model broker (membroker) in
// virtual time. One goroutine and one source of random numbers drive all of it: writers with transactions of every kind, relays that
// are killed, frozen and replaced, a database that loses its tail, a broker that loses answers, and people. After each step the
// promises are checked; when the faults have ended everything must drain. A seed replays exactly.
package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/onwardhq/onward/broker/membroker"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
)

// Options says what is run. The zero value but for the seed is a run as CI makes it.
type Options struct {
	Seed  uint64
	Steps int       // with faults; 0: 20,000. Then what is left is drained
	Trace io.Writer // gets every step as a line; nil: nobody does
}

// Result is what came of a run.
type Result struct {
	Seed    uint64
	Knobs   string   // what was drawn for the run
	Steps   int      // in all
	Hash    uint64   // of everything that happened: the same for the same seed
	Broken  []string // promises that did not hold; the run ends at the first
	Tail    []string // the last steps before that, where they were traced
	Reached Counts   // how often each state of interest was reached
	Counts  Counts   // of messages and of what happened to them
}

// Counts are numbers by name.
type Counts map[string]int

// Add adds another run's.
func (c Counts) Add(other Counts) {
	for name, n := range other {
		c[name] += n
	}
}

const (
	sinkName     = "sim"
	defaultSteps = 20_000
	drainSteps   = 400_000 // most steps until a run without faults has drained
	traced       = 120     // lines that are kept of a run
)

// world is one run.
type world struct {
	rng      *rand.Rand
	now      time.Duration
	queue    queue
	knobs    knobs
	db       *memstore.DB
	admin    *memstore.Admin
	broker   *membroker.Broker
	procs    []*process
	lives    []*run // that the database knows
	runs     uint64 // processes that were ever started
	ledger   []*entry
	keys     []*key
	open     []*transaction
	backups  []backup
	ending   bool // the faults are over
	outage   time.Duration
	sender   *run // whose messages the broker is taking
	pauses   []store.PauseAct
	wentBack time.Duration // when the database last lost its tail

	checks  checks
	trace   trace
	steps   int
	reached Counts
	counts  Counts
}

var epoch = time.Unix(1_800_000_000, 0)

// Run plays the world of a seed.
func Run(o Options) Result {
	if o.Steps == 0 {
		o.Steps = defaultSteps
	}
	w := newWorld(o)
	for w.steps < o.Steps && w.step() {
	}
	w.end()
	for i := 0; w.ok(); i++ {
		if i%64 == 0 && w.drained() {
			break
		}
		if w.steps > o.Steps+drainSteps {
			w.fail("liveness: after the faults %d steps and %s have not drained it: %s", drainSteps, w.now, w.left())
			break
		}
		w.step()
	}
	if w.ok() {
		w.settleDown()
	}
	return w.result(o)
}

func newWorld(o Options) *world {
	w := &world{rng: rand.New(rand.NewPCG(o.Seed, 0x5eed)), reached: Counts{}, counts: Counts{}}
	w.trace.to = o.Trace
	w.knobs = w.draw()
	w.db = memstore.New(memstore.Config{
		Partitions: w.knobs.partitions, Coarse: w.knobs.coarse, Now: func() time.Time { return epoch.Add(w.now) },
	})
	w.admin = w.db.Admin()
	w.db.SetFault(w.databaseFault)
	w.broker = membroker.New(membroker.Config{
		Pipeline: w.knobs.pipeline, Positions: w.knobs.positions, Dedup: w.knobs.dedup, Compare: w.knobs.compare, Fence: w.knobs.fence,
		IDsOnly: true, Now: func() time.Time { return epoch.Add(w.now) }, Deliver: w.deliver, Stored: w.stored,
		Faults: []membroker.Rule{w.brokerFault},
	})
	for range w.knobs.keys {
		w.keys = append(w.keys, &key{name: fmt.Sprintf("k%d", len(w.keys))})
	}
	for i := range w.knobs.relays {
		p := &process{w: w, no: i, name: fmt.Sprintf("relay-%d", i), drift: w.rng.Int64N(2*mostDrift+1) - mostDrift}
		w.procs = append(w.procs, p)
		w.after(w.upTo(time.Second), nil, p.start)
	}
	w.after(0, nil, w.write)
	w.after(w.upTo(time.Second), nil, w.person)
	w.after(w.upTo(time.Second), nil, w.disaster)
	w.after(w.upTo(time.Second), nil, w.retain)
	return w
}

// step lets the next thing happen. false: a promise is broken.
func (w *world) step() bool {
	for {
		e := w.queue.pop()
		w.now = max(w.now, e.at)
		if p := e.of; p != nil && p.frozen > w.now { // a stopped process does nothing, and finds everything at once when it goes on
			w.queue.push(event{at: p.frozen, tie: e.tie, of: p, do: e.do})
			continue
		}
		w.steps++
		w.trace.step(w.steps, w.now)
		e.do()
		return w.ok()
	}
}

// after schedules something that happens in d; of: to this process, which may be stopped then.
func (w *world) after(d time.Duration, of *process, do func()) {
	w.queue.push(event{at: w.now + d, tie: w.rng.Uint64(), of: of, do: do})
}

// end ends the faults: everything works from now on, what people hold back goes on, and every relay runs.
func (w *world) end() {
	w.ending, w.outage = true, 0
	w.trace.say(w, "the faults end")
	w.broker.SetUnavailable(false)
	w.broker.SetThrottle(0)
	w.broker.DeliverLate()
	for _, tx := range w.open {
		w.after(w.upTo(time.Second), nil, tx.commit)
	}
	for _, p := range w.procs {
		p.frozen = min(p.frozen, w.now)
		if p.run == nil || p.run.stopping {
			p.restart()
		}
	}
	w.resumeAll()
}

// drained reports whether every message that must arrive has, and nothing is left to do.
func (w *world) drained() bool {
	w.requeueAll()
	for _, tx := range w.open {
		if !tx.over {
			return false
		}
	}
	for _, e := range w.ledger {
		if e.wanted() && e.copies == 0 {
			return false
		}
	}
	for p := range w.knobs.partitions {
		if h := w.db.Holding(sinkName, p); h.Unread+h.Open+h.Parked > 0 {
			return false
		}
	}
	for _, p := range w.procs {
		if p.run == nil || p.run.machine == nil {
			return false
		}
		if messages, keys := p.run.machine.Backlog(); messages+keys > 0 {
			return false
		}
	}
	return true
}

// settleDown lets the drained world run on: what comes again now must be explained like everything else.
func (w *world) settleDown() {
	for range 2000 {
		if !w.step() {
			return
		}
	}
}

// left says what has not drained.
func (w *world) left() string {
	missing, unread, open, parked := 0, 0, 0, 0
	example := ""
	for _, e := range w.ledger {
		if e.wanted() && e.copies == 0 {
			if missing++; example == "" {
				state, err := w.admin.State(ctx, sinkName, e.receipt)
				example = fmt.Sprintf("the first is %s (%+v, %v)", e, state, err)
			}
		}
	}
	for p := range w.knobs.partitions {
		h := w.db.Holding(sinkName, p)
		unread, open, parked = unread+h.Unread, open+h.Open, parked+h.Parked
	}
	text := fmt.Sprintf("%d messages have not arrived, %d are unread, %d without an outcome, %d keys blocked; %s", missing, unread, open, parked, example)
	for _, p := range w.procs {
		if p.run == nil {
			text += fmt.Sprintf("; %s is down", p.name)
		} else if p.run.machine != nil {
			messages, keys := p.run.machine.Backlog()
			text += fmt.Sprintf("; %s: %d messages, %d keys, breaker open %v", p.name, messages, keys, p.run.machine.BreakerOpen())
		}
	}
	return text
}

func (w *world) result(o Options) Result {
	for _, e := range w.ledger {
		switch {
		case e.lost:
			w.counts["lost by the database"]++
		case e.committed > 0:
			w.counts["committed"]++
		case e.aborted:
			w.counts["rolled back"]++
		}
	}
	return Result{
		Seed: o.Seed, Knobs: w.knobs.String(), Steps: w.steps, Hash: w.trace.hash, Broken: w.checks.broken, Tail: w.trace.tail(),
		Reached: w.reached, Counts: w.counts,
	}
}

func (w *world) ok() bool { return len(w.checks.broken) == 0 }

func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf("step %d, %s: ", w.steps, w.now) + fmt.Sprintf(format, args...)
	w.checks.broken = append(w.checks.broken, text)
	w.trace.say(w, "BROKEN: %s", text)
}

// reach counts a state of interest.
func (w *world) reach(state string) { w.reached[state]++ }

// The draws.

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d) + 1)) }

func (w *world) between(a, b time.Duration) time.Duration { return a + w.upTo(b-a) }

// latency is how long something is on its way: mostly a moment, sometimes long.
func (w *world) latency() time.Duration {
	if w.ending {
		return w.upTo(w.knobs.latency)
	}
	switch n := w.rng.IntN(1000); {
	case n < 1:
		return w.upTo(1000 * w.knobs.latency)
	case n < 30:
		return w.upTo(30 * w.knobs.latency)
	}
	return w.upTo(w.knobs.latency)
}

// deliver takes an answer of the broker to its sender.
func (w *world) deliver(answer func()) {
	r := w.sender
	w.after(w.latency(), r.process, func() {
		if r.alive() {
			answer()
		}
	})
}
