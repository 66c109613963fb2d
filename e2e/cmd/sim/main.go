// Command sim runs the simulator (package sim) over seeds, and says what it found.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/e2e/sim"
)

func main() {
	from := flag.Uint64("from", 1, "the first `seed`")
	seeds := flag.Int("seeds", 50, "how many seeds are run")
	steps := flag.Int("steps", 20_000, "steps of each with faults; then what is left is drained")
	workers := flag.Int("workers", 1, "how many run at a time")
	trace := flag.Bool("trace", false, "print every step (with -seeds 1)")
	report := flag.String("json", "", "write the figures to this `file`")
	flag.Usage = func() {
		_, _ = fmt.Fprint(flag.CommandLine.Output(), "sim runs relays against a model database and a model broker, in virtual time, and checks every promise after every step.\n"+
			"A seed replays exactly: sim -from 7 -seeds 1 -trace prints what happened in it.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || *seeds < 1 || *workers < 1 || *steps < 1 {
		flag.Usage()
		os.Exit(2)
	}
	total := run(*from, *seeds, *steps, *workers, *trace)
	total.print(os.Stdout)
	if *report != "" {
		if err := total.write(*report); err != nil {
			fmt.Fprintln(os.Stderr, "sim:", err)
			os.Exit(1)
		}
	}
	if len(total.Failed) > 0 || len(total.Missing) > 0 {
		os.Exit(1)
	}
}

// totals are what all seeds came to.
type totals struct {
	Command string     `json:"command"`
	Commit  string     `json:"commit"`
	From    uint64     `json:"from"`
	Seeds   int        `json:"seeds"`
	Steps   int        `json:"steps"`
	Hash    string     `json:"hash"` // of the hashes of all seeds
	Took    float64    `json:"seconds"`
	Rate    int        `json:"steps_a_second"` // of processor time, the collection of garbage and traces of broken seeds included
	Reached sim.Counts `json:"reached"`
	Counts  sim.Counts `json:"counts"`
	Missing []string   `json:"missing,omitempty"`
	Failed  []failure  `json:"failed,omitempty"`
}

type failure struct {
	Seed   uint64   `json:"seed"`
	Knobs  string   `json:"knobs"`
	Broken []string `json:"broken"`
	Tail   []string `json:"-"`
}

func run(from uint64, seeds, steps, workers int, trace bool) *totals {
	t := &totals{Command: "go run ./e2e/cmd/sim " + strings.Join(os.Args[1:], " "), Commit: harness.Commit(), From: from, Seeds: seeds, Reached: sim.Counts{}, Counts: sim.Counts{}}
	hashes := make([]uint64, seeds)
	var mu sync.Mutex
	var all sync.WaitGroup
	next, done := 0, 0
	began := time.Now()
	said := began
	for range workers {
		all.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= seeds {
					return
				}
				o := sim.Options{Seed: from + uint64(i), Steps: steps} //nolint:gosec // not negative
				if trace {
					o.Trace = os.Stdout
				}
				r := sim.Run(o)
				if len(r.Broken) > 0 && !trace { // again, to see how it came to that
					o.Trace = io.Discard
					r.Tail = sim.Run(o).Tail
				}
				mu.Lock()
				hashes[i] = r.Hash
				t.add(&r)
				if done++; time.Since(said) > 2*time.Second {
					said = time.Now()
					fmt.Fprintf(os.Stderr, "sim: %d of %d seeds, %d steps, %d failed\n", done, seeds, t.Steps, len(t.Failed))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	t.Hash = fmt.Sprintf("%016x", sim.Mix(0, hashes...))
	t.Took = time.Since(began).Seconds()
	t.Rate = int(float64(t.Steps) / processorTime().Seconds())
	if seeds >= sim.SeedsToReachAll {
		t.Missing = sim.Missing(t.Reached)
	}
	slices.SortFunc(t.Failed, func(a, b failure) int { return int(a.Seed) - int(b.Seed) }) //nolint:gosec // small
	return t
}

// processorTime is what the process has used: a machine that others use says little by the clock on the wall.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return time.Nanosecond
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (t *totals) add(r *sim.Result) {
	t.Steps += r.Steps
	t.Reached.Add(r.Reached)
	t.Counts.Add(r.Counts)
	if len(r.Broken) > 0 {
		t.Failed = append(t.Failed, failure{r.Seed, r.Knobs, r.Broken, r.Tail})
	}
}

func (t *totals) print(to io.Writer) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(to, format, args...) }
	for _, what := range []struct {
		title string
		n     sim.Counts
	}{{"reached", t.Reached}, {"messages", t.Counts}} {
		say("%s:\n", what.title)
		for _, name := range what.n.Names() {
			say("  %9d  %s\n", what.n[name], name)
		}
	}
	for i, f := range t.Failed {
		say("seed %d is broken: %s\n  knobs: %s\n", f.Seed, strings.Join(f.Broken, "\n  "), f.Knobs)
		if i == 0 && len(f.Tail) > 0 {
			say("  the last steps:\n    %s\n", strings.Join(f.Tail, "\n    "))
		}
	}
	if len(t.Missing) > 0 {
		say("never reached: %s\n", strings.Join(t.Missing, ", "))
	}
	verdict := "every promise held"
	if len(t.Failed) > 0 {
		verdict = fmt.Sprintf("%d SEEDS ARE BROKEN", len(t.Failed))
	}
	say("sim: %s: %d seeds from %d, %d steps, %.1f s, %d steps a second of one core, trace hash %s\n", verdict, t.Seeds, t.From, t.Steps, t.Took, t.Rate, t.Hash)
}

func (t *totals) write(file string) error {
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644) //nolint:gosec // a report
}
