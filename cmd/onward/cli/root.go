package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// app is one run of the program: what it has around it, and its global flags.
type app struct {
	env Environment

	configFile string
	set        []string
	output     string
	noColor    bool
	quiet      bool

	config   *config.Config // once it was read
	progress progress
	errLock  sync.Mutex // for words on stderr
}

func newRoot(a *app) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "onward",
		Short: "Move messages out of a database exactly as they were committed",
		Long: `Onward moves messages out of a database exactly as they were committed: a service
writes its state and its messages in one transaction, and a relay publishes them to
a broker, in order per key, at least once.

This program runs relays and shows, repairs and migrates the outbox that they read.`,
		Example: `  onward migrate up                          create the tables
  onward relay --config onward.yaml          publish what is written
  onward demo --fail crash                   see all of it at work, for half a minute
  onward status                              backlog, lag, parked, dead
  onward dead list                           what gave up, and why
  onward dead requeue ID                     try it again
  onward pause sink orders --reason ...      hold everything back; ` + "`onward resume`" + ` lets it go`,
	})
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "configuration `file`; default: $ONWARD_CONFIG, or onward.yaml if it is here")
	flags.StringArrayVar(&a.set, "set", nil, "make one setting, `path=value`; wins over file and environment")
	flags.StringVarP(&a.output, "output", "o", outTable, "`format` of data: table, json or jsonl (one object a line)")
	flags.BoolVar(&a.noColor, "no-color", false, "no colors; the variable NO_COLOR does the same")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "no words beside the data; errors are said")
	root.InitDefaultHelpFlag() // before the command line is read: `onward -h relay` is about relay
	root.Version = version().Version
	root.SetVersionTemplate("onward {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{err: flagError(c, err), command: c.CommandPath()}
	})
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := a.checkOutput(); err != nil {
			return &usageError{err: err, command: c.CommandPath()}
		}
		return nil
	}
	root.AddGroup(&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "look", Title: "Look:"},
		&cobra.Group{ID: "repair", Title: "Repair:"}, &cobra.Group{ID: "prove", Title: "Prove:"}, &cobra.Group{ID: "schema", Title: "Set up:"})
	root.SetHelpCommand(newHelp(root))
	add := func(id string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	add("run", newRelay(a), newDemo(a))
	add("look", newStatus(a), newMessages(a), newPartitions(a), newRelays(a), newSinks(a), newKeys(a), newPauses(a))
	add("repair", newDead(a), newPause(a), newResume(a))
	add("prove", newDoctor(a))
	add("schema", newMigrate(a), newVersion(a))
	root.SetHelpCommandGroupID("schema")
	root.AddCommand(helpOnConfig(), helpOnExitCodes())
	return root
}

// newHelp makes `onward help COMMAND`, which says so where there is no such command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about any command",
		Example: "  onward help dead requeue\n  onward help config",
		RunE: func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("there is no help about %q", strings.Join(args, " "))
			}
			if err != nil {
				return &usageError{err: err, command: root.CommandPath()}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// flagError says which flag was meant by one that there is not, and leaves out what the parser says of itself.
func flagError(c *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("%w, did you mean --%s?", err, near)
		}
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		kind := map[string]string{"int": "a whole number", "number": "a whole number from 1 on", "duration": "a duration: write for example 500ms or 5s", "bool": "true or false"}[invalid.GetFlag().Value.Type()]
		if kind != "" {
			return fmt.Errorf("--%s %s: is not %s", invalid.GetFlag().Name, invalid.GetValue(), kind)
		}
	}
	return err
}

// group makes a command that only holds others: alone it shows its help, and it knows no arguments of its own.
func group(c *cobra.Command, below ...*cobra.Command) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		detail := fmt.Sprintf("there is no command %q", c.CommandPath()+" "+args[0])
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			detail += ", did you mean " + strings.Join(near, " or ") + "?"
		}
		return &usageError{err: errors.New(detail), command: c.CommandPath()}
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(below...)
	return c
}

// takes makes the check of a command's arguments; what is their words in the usage line.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return &usageError{err: fmt.Errorf("%s needs %s", c.CommandPath(), what), command: c.CommandPath()}
		case len(args) > most:
			return &usageError{err: fmt.Errorf("%s does not know what to do with %q", c.CommandPath(), args[most]), command: c.CommandPath()}
		}
		return nil
	}
}

// load reads the configuration, once, for what this command needs of it.
func (a *app) load(need config.Need) (*config.Config, error) {
	if a.config != nil {
		return a.config, nil
	}
	file := a.configFile
	if file == "" {
		file = a.env.variable(config.FileVariable)
	}
	if file == "" {
		if _, err := os.Stat("onward.yaml"); err == nil {
			file = "onward.yaml"
		}
	}
	c, err := config.Load(config.Source{File: file, Environ: a.env.Environ, Set: a.set, Need: need})
	if err != nil {
		return nil, err
	}
	a.config = c
	return c, nil
}

func helpOnConfig() *cobra.Command {
	var b strings.Builder
	b.WriteString(`Settings come from a YAML file, then from the environment, then from flags; the later
ones win.

  the file       --config FILE, or $ONWARD_CONFIG, or onward.yaml in this folder
  environment    ONWARD_ and the path in capitals, "__" between the levels:
                 ONWARD_RELAY__LEASE=30s, ONWARD_SINKS__0__URL=nats://broker:4222
  secrets        (marked *) also from a file: ONWARD_DATABASE__URL_FILE=/run/secrets/url
  flags          --set relay.lease=30s, --set sinks[0].url=nats://broker:4222

Durations are written 20ms, 15s, 10m, 24h or 30d, sizes 4096, 512KiB, 16MiB or 1MB. A key
that is not in this list is refused, with its line.

`)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range config.Settings() {
		path, def := s.Path, s.Default
		if s.Secret {
			path += " *"
		}
		if def == "" {
			def = "-"
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\n", path, def, s.Note)
	}
	_ = w.Flush() // all of it into a strings.Builder
	return &cobra.Command{Use: "config", Short: "Every setting, its default and what it does", Long: strings.TrimSpace(b.String())}
}

func helpOnExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: `The exit code says what became of a command:

  0  done; for relay: everything in flight was settled, and its leases are given back
  1  failed
  2  wrong usage or configuration, or the tables are missing, older or newer
  3  not found
  4  refused: conflict, reorder, not confirmed, not allowed; for doctor: unsafe
  5  database or broker not reachable
  6  stopped by a second signal

Errors name a stable code, for example onward/schema-missing, and mostly what to do.`}
}
