package cli

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
)

// relayFlags are those of `onward relay`.
type relayFlags struct {
	only                          []string
	json, silent, once, noLeasing bool
	endsWithInput                 bool
	interval, window              positive
}

func (f *relayFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringSliceVar(&f.only, "sink", nil, "serve this sink alone, of those in the configuration (repeat it for several)")
	flags.BoolVar(&f.once, "once", false, "one pass over what is there, then end: 0 when all of it was published, parked or is dead")
	flags.BoolVar(&f.noLeasing, "no-leasing", false, "share no sink: another relay of it, now or later, is refused with onward/lease-held")
	flags.BoolVar(&f.json, "json", false, "one JSON object a tick and sink on stdout: what was read, published, retried, ...")
	flags.BoolVar(&f.silent, "silent", false, "no log: stderr has nothing but why it failed")
	flags.Var(&f.interval, "interval-ms", "the tick, in `milliseconds`: how often an idle relay looks, and how often --json says a line")
	flags.BoolVar(&f.endsWithInput, "ends-with-input", false, "stop when standard input ends, and not by Ctrl-C: whoever started it decides")
	_ = flags.MarkHidden("ends-with-input") // it is there
	flags.Var(&f.window, "window", "say in the log what was done in each so many `seconds`: published, a second, retried, ... (at a terminal: 5)")
}

// apply puts what the flags say in the place of settings.
func (f *relayFlags) apply(c *config.Config) error {
	if err := onlySinks(c, f.only); err != nil {
		return err
	}
	if every := f.every(); every > 0 {
		c.Relay.PollMin, c.Relay.PollMax = every, every
	}
	return nil
}

// every is the tick; 0: the usual one.
func (f *relayFlags) every() time.Duration { return time.Duration(f.interval) * time.Millisecond }

// figures is the time over which figures are gathered for the log; 0: they are not.
func (f *relayFlags) figures(terminal bool) time.Duration {
	if f.window == 0 && terminal && !f.json && !f.once {
		return usualWindow
	}
	return time.Duration(f.window) * time.Second
}

// patience is how long the database is waited for; 0: for ever.
func (f *relayFlags) patience(c *config.Config) time.Duration {
	if f.once {
		return c.Relay.Lease
	}
	return 0
}

// logger is the program's log, or none.
func (f *relayFlags) logger(a *app, c *config.Config) *slog.Logger {
	if f.silent {
		return slog.New(slog.DiscardHandler)
	}
	return newLogger(a.env.Err, a.env.ErrIsTerminal, a.quiet, c.Telemetry.Log)
}

// positive is a flag that is a whole number from 1.
type positive int

func (p *positive) String() string { return "" }
func (p *positive) Type() string   { return "number" }

// Set is pflag's.
func (p *positive) Set(text string) error {
	var n int
	if _, err := fmt.Sscanf(text+"\n", "%d\n", &n); err != nil || n < 1 || n > 1_000_000_000 {
		return fmt.Errorf("is not a whole number from 1 to 1000000000")
	}
	*p = positive(n)
	return nil
}

// onlySinks leaves the sinks of these names; none: all of them.
func onlySinks(c *config.Config, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(c.Sinks, func(s config.Sink) bool { return s.Name == name }) {
			var known []string
			for _, s := range c.Sinks {
				known = append(known, s.Name)
			}
			return &outbox.Error{
				Code: outbox.ErrConfigInvalid.Code, Op: "relay --sink", Detail: fmt.Sprintf("there is no sink %q in the configuration", name),
				Hint: "the sinks are: " + strings.Join(known, ", "),
			}
		}
	}
	if names != nil {
		c.Sinks = slices.DeleteFunc(c.Sinks, func(s config.Sink) bool { return !slices.Contains(names, s.Name) })
	}
	return nil
}
