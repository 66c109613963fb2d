package sim

import (
	"io"
	"slices"
	"testing"

	"github.com/onwardhq/onward/broker/membroker"
)

// Seeds that once found something, whatever it was (docs/proof.md). They are run for ever; what they do changes with the world.
var kept = []uint64{9, 17, 20, 39, 44, 51, 55, 69, 78, 86, 87, 93, 106, 127, 140, 166, 269, 314}

// Every promise holds in every run, every run drains when the faults end, and together they reach every state of interest. With the
// race detector, which has little to find in one goroutine, it is a sample: make sim runs more of them, faster.
func TestEveryPromiseHoldsInTheSimulator(t *testing.T) {
	t.Parallel()
	seeds, steps := uint64(SeedsToReachAll), 6000
	few := testing.Short() || raced
	if few {
		seeds = 8
	}
	reached := Counts{}
	total := 0
	for seed := range seeds {
		r := hold(t, Options{Seed: seed + 1, Steps: steps})
		reached.Add(r.Reached)
		total += r.Steps
	}
	t.Logf("%d steps: %v", total, reached)
	if missing := Missing(reached); len(missing) > 0 && !few {
		t.Errorf("no run reached %q", missing)
	}
}

func TestKeptSeedsHold(t *testing.T) {
	t.Parallel()
	steps := 0 // as found
	if raced {
		steps = 2000
	}
	for _, seed := range kept {
		hold(t, Options{Seed: seed, Steps: steps})
	}
}

func hold(t *testing.T, o Options) Result {
	t.Helper()
	r := Run(o)
	for _, broken := range r.Broken {
		t.Errorf("seed %d: %s\n%s", o.Seed, broken, r.Knobs)
	}
	if t.Failed() {
		t.Fatalf("what happened: go run ./e2e/cmd/sim -from %d -seeds 1 -steps %d -trace", o.Seed, o.Steps)
	}
	return r
}

// Two runs of one seed are the same to the last step, also where one is traced; two seeds are not.
func TestASeedReplaysExactly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		o := Options{Seed: seed, Steps: 3000}
		first, second := Run(o), Run(o)
		o.Trace = io.Discard
		traced := Run(o)
		if first.Hash != second.Hash || first.Hash != traced.Hash || first.Steps != traced.Steps {
			t.Errorf("seed %d: hashes %x, %x and, traced, %x", seed, first.Hash, second.Hash, traced.Hash)
		}
		if other := Run(Options{Seed: seed + 100, Steps: 3000}); other.Hash == first.Hash {
			t.Errorf("seeds %d and %d have one hash", seed, seed+100)
		}
	}
}

func TestTheQueueGivesTheNextEventFirst(t *testing.T) {
	t.Parallel()
	var q queue
	var want []int
	for i := range 1000 {
		n := i * 7919 % 1000
		want = append(want, n)
		q.push(event{at: 1, tie: uint64(n)})
	}
	slices.Sort(want)
	for _, n := range want {
		if e := q.pop(); e.tie != uint64(n) {
			t.Fatalf("%d came, want %d", e.tie, n)
		}
	}
}

// A broken promise ends the run and leaves the last steps, where they were traced.
func TestABrokenPromiseIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{Seed: 1, Trace: io.Discard})
	for range 200 {
		w.step()
	}
	w.stored(lastWritten(w))
	if len(w.checks.broken) == 0 || len(w.trace.tail()) == 0 {
		t.Error("a message that was never committed arrived, and nobody said so")
	}
}

// lastWritten is a message of a transaction that is open.
func lastWritten(w *world) membroker.Message {
	for {
		for _, e := range slices.Backward(w.ledger) {
			if e.committed == 0 && !e.aborted {
				return membroker.Message{ID: idOf(e.n), Epoch: 1}
			}
		}
		w.step()
	}
}
