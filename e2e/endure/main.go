// Command endure kills or restarts relays under load, thousands of times, and compares what arrived with the ledger that writers
// kept in their transactions.
//
//	endure kills -n 10000      kill -9 at random points; nothing may be lost
//	endure restarts -n 1000    graceful restarts and changes of the number of relays; nothing may be lost or come twice
//	endure check FILE          the verdict on a run that was saved, once more
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

func main() {
	harness.Main() // where this process is a relay
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: endure kills|restarts [flags]
       endure check FILE
The servers are those of ONWARD_TEST_POSTGRES_URL and ONWARD_TEST_NATS_URL (dev/services).
`

var errUsage = errors.New("wrong usage")

// run returns the exit code: 0 the promises were kept, 1 they were not or the run failed, 2 wrong usage.
func run(ctx context.Context, args []string, out, words io.Writer) int {
	err := command(ctx, args, out, words)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		_, _ = fmt.Fprintf(words, "endure: %v\n%s", err, usage)
		return 2
	}
	_, _ = fmt.Fprintln(words, "endure:", err)
	return 1
}

func command(ctx context.Context, args []string, out, words io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch what := args[0]; what {
	case "check":
		if len(args) != 2 {
			return errUsage
		}
		return checkAgain(args[1], out)
	case "kills", "restarts":
		return endure(ctx, what, args[1:], out, words)
	}
	return errUsage
}

// checkAgain judges a saved run.
func checkAgain(file string, out io.Writer) error {
	run, err := harness.Load(file)
	if err != nil {
		return err
	}
	v, o := harness.Check(run), harness.CheckOwners(run, partitions)
	_, _ = fmt.Fprintf(out, "%v; epochs with two owners %d, copies that no fault explains %d\n%s\n", v, o.Shared, o.Living, v.Details())
	if v.Lost+v.Phantom+v.Reordered+o.Shared > 0 {
		return errBroken
	}
	return nil
}

var errBroken = errors.New("promises were broken")

func endure(ctx context.Context, what string, args []string, out, words io.Writer) error {
	c := config{What: what, Database: os.Getenv("ONWARD_TEST_POSTGRES_URL"), NATS: os.Getenv("ONWARD_TEST_NATS_URL"), Words: words}
	c.usual()
	flags := flag.NewFlagSet("endure "+what, flag.ContinueOnError)
	flags.SetOutput(words)
	flags.IntVar(&c.Count, "n", c.Count, "how many")
	flags.Uint64Var(&c.Seed, "seed", rand.Uint64N(1<<32), "of what is done to whom, and when")
	flags.IntVar(&c.Relays, "relays", c.Relays, "how many run at once (restarts: at first)")
	flags.DurationVar(&c.Lease, "lease", c.Lease, "of the relays")
	flags.DurationVar(&c.Every, "every", c.Every, "time between two of them, on average")
	file := flags.String("report", "", "write the report, as JSON, to this file as well")
	asJSON := flags.Bool("json", false, "print the report as JSON")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil || flags.NArg() > 0:
		return errUsage
	}
	if c.Count < 1 || c.Relays < 1 || c.Every <= 0 || c.Lease < 100*time.Millisecond {
		return fmt.Errorf("%w: -n and -relays at least 1, -every above 0, -lease at least 100ms", errUsage)
	}
	if c.Database == "" || c.NATS == "" {
		return errors.New(`no servers: start them with: dev/services up && eval "$(dev/services env)"`)
	}
	report, err := c.run(ctx)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if *file != "" {
		if err := os.WriteFile(*file, append(text, '\n'), 0o644); err != nil { //nolint:gosec // it is published
			return err
		}
	}
	if *asJSON {
		_, _ = fmt.Fprintf(out, "%s\n", text)
	} else {
		_, _ = fmt.Fprintln(out, report)
	}
	if !report.Holds {
		return errBroken
	}
	return nil
}
