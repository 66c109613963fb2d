package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/cmd/onward/internal/demo"
)

const (
	demoLongest  = 24 * time.Hour
	demoShortest = time.Second
	demoFastest  = 2000
)

func newDemo(a *app) *cobra.Command {
	c := demo.Config{}
	var fail string
	command := &cobra.Command{
		Use:   "demo",
		Short: "Watch an outbox at work, break something, see the proof",
		Long: `Runs the whole of it on this machine for half a minute, with nothing but this program: an order service that
writes orders and messages into an SQLite file, in one transaction each (and rolls one in twenty back); a
NATS server with JetStream on disk; a relay for the orders of each region, and one that stands by. The relays
are ` + "`onward relay`" + ` processes with a configuration like yours.

  --fail broker   the NATS server is away for some seconds: the backlog grows, no message pays an attempt
  --fail crash    a relay is killed: the one that stands by takes over when its lease has run out, and sends
                  again what it cannot know; the stream knows the second copies by their ids
  --fail poison   the stream refuses some messages: they are dead letters that hold back their key alone. An
                  operator mends what refused two of them, and tries them again; the others stay
  without         a relay is stopped and started again, as by a deployment

At the end the stream is read back by another connection and compared with a ledger that the service wrote in
the same transactions: everything committed is there, nothing that was rolled back, in order per key, as it was
written. Where that does not hold it exits with 1. Ctrl-C ends it early, with the proof.

On a terminal it draws a picture; elsewhere it writes plain lines. Data is on stdout: the proof. Ports are free
ones, files are in a folder of its own, and both are gone afterwards; while it runs, any command can look:
the first line says how.`,
		Example: `  onward demo
  onward demo --fail crash
  onward demo --for 2m --rate 500 --seed 7
  onward demo --fail broker --output json | jq '{holds, committed, received, duplicates}'`,
		Args: takes(0, 0, ""),
		RunE: func(command *cobra.Command, _ []string) error {
			c.Fault = demo.Fault(fail)
			if err := a.checkDemo(&c); err != nil {
				return &usageError{err: err, command: command.CommandPath()}
			}
			return a.runDemo(command.Context(), c)
		},
	}
	command.Flags().DurationVar(&c.For, "for", 30*time.Second, "how long the service writes, `duration` from 1s to 24h")
	command.Flags().IntVar(&c.Rate, "rate", 200, "transactions a second, 1 to 2,000; a slow disk does fewer")
	command.Flags().StringVar(&fail, "fail", "", "what goes wrong, `kind`: broker, poison or crash")
	command.Flags().Uint64Var(&c.Seed, "seed", 1, "of the orders: the same `number`, the same orders and messages")
	return command
}

func (a *app) checkDemo(c *demo.Config) error {
	if a.configFile != "" || len(a.set) > 0 {
		return errors.New("the demo makes its own configuration: it takes neither --config nor --set")
	}
	if c.Fault == "" {
		c.Fault = demo.HandOver
	} else if !slices.Contains(demo.Faults, c.Fault) {
		return fmt.Errorf("--fail %s: is not broker, poison or crash", c.Fault)
	}
	if c.For < demoShortest || c.For > demoLongest {
		return fmt.Errorf("--for %s: is not from 1s to 24h", c.For)
	}
	if c.Rate < 1 || c.Rate > demoFastest {
		return fmt.Errorf("--rate %d: is not from 1 to %s", c.Rate, count(demoFastest))
	}
	return nil
}

func (a *app) runDemo(ctx context.Context, c demo.Config) error {
	program := a.env.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program, to start its relays: %w", err)
		}
	}
	c.Folder = a.env.variable("TMPDIR")
	c.Relay = func(args ...string) *exec.Cmd {
		relay := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // the demo ends it, in its own way
		// Settings of this environment are for an outbox of its owner's, not for the demo's.
		relay.Env = slices.DeleteFunc(slices.Clone(a.env.Environ), func(pair string) bool { return strings.HasPrefix(pair, "ONWARD_") })
		return relay
	}
	c.Onward = a.onwardHere
	c.Hurry = func(func()) {}
	if a.env.AtOnce != nil {
		c.Hurry = a.env.AtOnce
	}
	c.Tell, c.Show = a.demoWords()
	r, err := demo.Run(ctx, c)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := a.reportDemo(&r); err != nil {
		return err
	}
	if !r.Holds {
		return fmt.Errorf("the proof failed: %s", strings.Join(faults(&r.Proof), ", "))
	}
	return nil
}

// onwardHere runs a command of this program, which asks nobody.
func (a *app) onwardHere(ctx context.Context, args ...string) error {
	var out, words strings.Builder
	code := Run(ctx, args, Environment{In: strings.NewReader(""), Out: &out, Err: &words, Now: a.env.Now, Patience: time.Hour})
	if code != exitDone {
		return fmt.Errorf("onward %s: exit %d: %s", strings.Join(args, " "), code, strings.TrimSpace(words.String()))
	}
	return nil
}

// demoWords are the picture on a terminal, and lines elsewhere.
func (a *app) demoWords() (tell func(demo.Event), show func(demo.Scene)) {
	tell, show = func(demo.Event) {}, func(demo.Scene) {}
	switch {
	case a.quiet:
	case a.env.ErrIsTerminal && a.env.OutIsTerminal && a.env.variable("TERM") != "dumb":
		screen := demo.NewScreen(a.env.Err)
		p := a.paint(true)
		show = func(s demo.Scene) {
			columns, rows := 0, 0
			if a.env.ErrSize != nil {
				columns, rows = a.env.ErrSize()
			}
			if columns <= 0 || rows <= 0 {
				columns, rows = 80, 24
			}
			picture := s.Draw(demo.Canvas{
				Columns: columns - 1, Rows: rows - 1, Unicode: a.unicode(),
				Paint: func(text string, c demo.Color) string { return p(text, style(c)) },
			})
			screen.Show(picture, columns)
		}
	default:
		tell = func(e demo.Event) { a.say("%s", e.Line()) }
		said := time.Duration(0)
		show = func(s demo.Scene) { // by one goroutine
			if s.At-said >= demo.LineEvery {
				said = s.At
				a.say("%s", s.Line())
			}
		}
	}
	return tell, show
}

// unicode reports whether the terminal shows more than ASCII, as the locale says.
func (a *app) unicode() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(a.env.variable(name)); locale != "" {
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}
