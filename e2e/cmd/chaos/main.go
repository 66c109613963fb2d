// Command chaos runs an outbox, breaks everything around it, and says whether every promise was kept; see docs/chaos.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/chaos"
)

const usage = `chaos breaks everything around an outbox at random, and says whether every promise was kept.

  chaos [flags]          one run: a store, a broker, a seed
  chaos all [flags]      one run of each pair of a store and a broker; --duration is of all of them together
  chaos check DIR        check an old report again; nothing is run

A run starts servers of its own, relays and writers as processes, and proxies between them. It kills, stops, cuts, fills and
restarts them for --duration, makes everything sound again, waits until all that was committed has arrived, and compares what
the broker has with a ledger that was written in the business transactions. The faults are drawn from the seed: the same seed,
duration, store and broker have the same plan, though not the same moment for each message.

It ends with 0 where every promise was kept, with 1 where one was not, and with 2 where nothing can be said. The report's folder has
report.json, the ledger, what was received, the faults, the operator's acts, and the relays' logs.

  make chaos SEED=42 DURATION=1m STORE=sqlite
  make chaos-all DURATION=1h

Needs ONWARD_TEST_POSTGRES_BIN, and what says where the program of the broker is: eval "$(dev/services env)". As root, disks are filled up, too.

Flags:
`

// options are what the flags say.
type options struct {
	chaos.Config
	dir, json, proof string
}

func main() {
	chaos.Main() // where this process is a writer
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, words io.Writer) (ok bool, err error) {
	if len(args) > 0 && args[0] == "check" {
		if len(args) != 2 {
			return false, errors.New("name one folder: chaos check DIR")
		}
		report, err := chaos.Recheck(args[1], nil)
		if err != nil {
			return false, err
		}
		return say(out, words, report), nil
	}
	all := len(args) > 0 && args[0] == "all"
	if all {
		args = args[1:]
	}
	o, err := parse(args, words)
	if err != nil {
		return false, err
	}
	o.Progress = words
	reports, err := runs(ctx, o, all, out, words)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, reports))
	}
	ok = err == nil
	for i := range reports {
		ok = ok && reports[i].OK
	}
	return ok, err
}

func parse(args []string, words io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(words)
	flags.Usage = func() {
		_, _ = io.WriteString(words, usage)
		flags.PrintDefaults()
	}
	flags.Uint64Var(&o.Seed, "seed", 0, "draws the faults; 0: one that is told (of all: the first of them)")
	flags.DurationVar(&o.Duration, "duration", 20*time.Second, "how long faults are injected, for example 10m")
	flags.StringVar(&o.Store, "store", chaos.Postgres, "one of "+strings.Join(chaos.Stores, ", "))
	flags.StringVar(&o.Broker, "broker", chaos.JetStream, "one of "+strings.Join(chaos.Brokers, ", "))
	flags.IntVar(&o.Rate, "rate", 400, "messages a second that writers try")
	flags.DurationVar(&o.Lease, "lease", 2*time.Second, "of the relays")
	flags.StringVar(&o.dir, "dir", filepath.Join(".dev", "chaos"), "where the folders of reports are made")
	flags.StringVar(&o.Program, "onward", "", "the program to be tried; default: built from this work tree")
	flags.StringVar(&o.json, "json", "", "write the reports to this file as well")
	flags.StringVar(&o.proof, "proof", "", "write each report, without its timeline, to chaos-STORE-BROKER.json in this folder (docs/proof)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is neither all nor check nor a flag: chaos --help", flags.Arg(0))
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	return o, nil
}

// runs does one run, or one of each pair.
func runs(ctx context.Context, o options, all bool, out, words io.Writer) (reports []chaos.Report, err error) {
	pairs := [][2]string{{o.Store, o.Broker}}
	if all {
		pairs = nil
		for _, store := range chaos.Stores {
			for _, broker := range chaos.Brokers {
				pairs = append(pairs, [2]string{store, broker})
			}
		}
		o.Duration /= time.Duration(len(pairs))
	}
	for i, pair := range pairs {
		c := o.Config
		c.Store, c.Broker, c.Seed = pair[0], pair[1], o.Seed+uint64(i)
		c.Dir = filepath.Join(o.dir, fmt.Sprintf("%s-%s-%d-%s", c.Store, c.Broker, c.Seed, time.Now().Format("20060102-150405")))
		report, failed := chaos.Run(ctx, c)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s+%s: %w", c.Store, c.Broker, failed))
			continue
		}
		reports = append(reports, report)
		if o.proof != "" {
			err = errors.Join(err, writeJSON(filepath.Join(o.proof, "chaos-"+c.Store+"-"+c.Broker+".json"), report.Summary()))
		}
		say(out, words, report)
		_, _ = fmt.Fprintf(words, "  report: %s\n", c.Dir)
	}
	return reports, err
}

func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// say says the verdict, and beside it what was wrong and which faults there were.
func say(out, words io.Writer, r chaos.Report) bool {
	for _, example := range r.Examples {
		_, _ = fmt.Fprintln(words, " ", example)
	}
	for _, line := range r.Table() {
		_, _ = fmt.Fprintln(words, " ", line)
	}
	_, _ = fmt.Fprintln(out, r.Verdict)
	return r.OK
}
