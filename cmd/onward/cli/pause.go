package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newPause(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "pause",
		Short: "Hold back a sink, topics or a key, until a time or until somebody resumes",
		Long: `Holds messages back. All relays know of it within a second; what was on its way to the broker then
still arrives. It survives restarts, uses up no attempt, and loses nothing: what is written meanwhile
waits, in its order.

  pause sink     the sink publishes nothing. Its cursors stand still: nothing is passed, and retention
                 keeps what waits
  pause topic    messages of these topics are parked as they come by, and the later ones of their keys
                 behind them, whatever their topic: a key stays in order. All other messages go on
  pause key      messages of this key are parked as they come by; all other keys go on

` + "`onward status`" + ` shows what is paused, by whom and why; ` + "`onward pauses list`" + ` has it all.`,
		Example: `  onward pause sink orders --reason "the broker moves" --for 2h
  onward pause topic 'invoices.*' --reason "wrong VAT" --until 2026-03-01T06:00:00Z
  onward pause key order-42 --reason "the customer asked"
  onward resume key order-42`,
	}, newPauseKind(a, store.PauseSink), newPauseKind(a, store.PauseTopic), newPauseKind(a, store.PauseKey))
}

func newResume(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "resume",
		Short: "End a pause: what it held goes out, in order",
		Long: `Ends a pause now. Relays take up what it held within a second: the first message of each key that
waited, then those behind it. A message that another pause holds as well goes on waiting for that one.`,
		Example: `  onward resume sink orders
  onward resume topic 'invoices.*' --reason "VAT is right again"
  onward resume key order-42`,
	}, newResumeKind(a, store.PauseSink), newResumeKind(a, store.PauseTopic), newResumeKind(a, store.PauseKey))
}

// kinds are what is said of each kind: its argument, and what a pause of it holds.
var kinds = map[store.PauseKind]struct{ argument, needs, pause, resume, example string }{
	store.PauseSink:  {"SINK", "a sink", "Publish nothing to a sink", "Publish to a sink again", "orders"},
	store.PauseTopic: {"TOPIC", "a topic, or a pattern of topics", "Hold back topics: one, or those of a pattern", "Let topics go again", "'invoices.*'"},
	store.PauseKey:   {"KEY", "a key", "Hold back one key", "Let a key go again", "order-42"},
}

// pausing are the flags of pause and resume.
type pausing struct {
	act        store.PauseAct
	lasts, end string
}

func (p *pausing) register(c *cobra.Command) {
	if p.act.Kind != store.PauseSink {
		c.Flags().StringVar(&p.act.Sink, "sink", "", "of this `sink`; it may be left out where there is only one")
	}
	c.Flags().StringVar(&p.act.Reason, "reason", "", "`why`: status shows it, and the audit keeps it")
	c.Flags().BoolVar(&p.act.DryRun, "dry-run", false, "find out whether it would be refused, and change nothing")
}

// target takes the argument, and finds the sink where it was left out.
func (p *pausing) target(ctx context.Context, c *cobra.Command, admin store.Admin, name string) error {
	p.act.Actor = actor()
	if p.act.Kind == store.PauseSink {
		p.act.Sink = name
		return nil
	}
	p.act.Name = name
	if p.act.Sink != "" {
		return nil
	}
	if c.Flags().Changed("sink") {
		return &usageError{err: fmt.Errorf("--sink is empty: leave it out, or say which"), command: c.CommandPath()}
	}
	s, err := admin.Status(ctx)
	if err != nil {
		return err
	}
	var names []string
	for i := range s.Sinks {
		names = append(names, s.Sinks[i].Name)
	}
	switch len(names) {
	case 1:
		p.act.Sink = names[0]
		return nil
	case 0:
		return &outbox.Error{Code: store.ErrNotFound.Code, Op: "find sink", Detail: "no relay has registered a sink yet"}
	}
	return &usageError{err: fmt.Errorf("there are several sinks: add --sink, one of %s", strings.Join(names, ", ")), command: c.CommandPath()}
}

func newPauseKind(a *app, kind store.PauseKind) *cobra.Command {
	k := kinds[kind]
	p := pausing{act: store.PauseAct{Kind: kind}}
	c := &cobra.Command{
		Use:   string(kind) + " " + k.argument + " --reason WHY",
		Short: k.pause,
		Example: fmt.Sprintf("  onward pause %s %s --reason \"the broker moves\" --for 2h\n  onward pause %s %s --reason \"wrong VAT\" --until 2026-03-01T06:00:00Z",
			kind, k.example, kind, k.example),
		Args: takes(1, 1, k.needs),
		RunE: func(c *cobra.Command, args []string) error { return p.pause(c, a, args[0]) },
	}
	p.register(c)
	c.Flags().StringVar(&p.lasts, "for", "", "until so `long` from now: 30m, 2h or 3d; without an end until somebody resumes")
	c.Flags().StringVar(&p.end, "until", "", "until this `time`: a date, or RFC 3339")
	return c
}

func (p *pausing) pause(c *cobra.Command, a *app, name string) error {
	if err := p.ends(c); err != nil {
		return err
	}
	return a.withRepair(c.Context(), func(ctx context.Context, admin store.Admin) error {
		pauser, err := pauserOf(admin)
		if err != nil {
			return err
		}
		if err := p.target(ctx, c, admin, name); err != nil {
			return err
		}
		made, err := pauser.Pause(ctx, p.act)
		if err != nil {
			return err
		}
		if err := a.emitPause(&made); err != nil {
			return err
		}
		if p.act.DryRun {
			a.say("it would be paused")
			return nil
		}
		a.say("paused: relays know within a second; `onward resume %s` ends it", pauseWords(&made))
		return nil
	})
}

// ends reads when the pause ends.
func (p *pausing) ends(c *cobra.Command) (err error) {
	bad := func(format string, args ...any) error {
		return &usageError{err: fmt.Errorf(format, args...), command: c.CommandPath()}
	}
	for name, value := range map[string]string{"for": p.lasts, "until": p.end} {
		if c.Flags().Changed(name) && value == "" {
			return bad("--%s is empty: leave it out, or say when", name)
		}
	}
	if p.lasts != "" && p.end != "" {
		return bad("--for and --until: it ends after a time or at a time, not both")
	}
	if p.lasts != "" {
		if p.act.For, err = parseSpan(p.lasts); err != nil {
			return bad("--for %w", err)
		}
	}
	if p.end != "" {
		if p.act.Until, err = parseMoment(p.end); err != nil {
			return bad("--until %w", err)
		}
	}
	return nil
}

// parseSpan reads how long something lasts.
func parseSpan(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	if days, ok := parseDays(s); ok && days > 0 && days < 100_000 {
		return time.Duration(days) * 24 * time.Hour, nil
	}
	return 0, fmt.Errorf("%q: is no duration: write 30m, 2h or 3d", s)
}

// parseMoment reads a time of the clock; without a zone it is UTC, as everything that is shown.
func parseMoment(s string) (time.Time, error) {
	for _, layout := range momentLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: is no time: write 2026-01-31, or 2026-01-31T15:04:05Z", s)
}

func newResumeKind(a *app, kind store.PauseKind) *cobra.Command {
	k := kinds[kind]
	p := pausing{act: store.PauseAct{Kind: kind}}
	c := &cobra.Command{
		Use:     string(kind) + " " + k.argument,
		Short:   k.resume,
		Example: fmt.Sprintf("  onward resume %s %s", kind, k.example),
		Args:    takes(1, 1, k.needs),
		RunE:    func(c *cobra.Command, args []string) error { return p.resume(c, a, args[0]) },
	}
	p.register(c)
	return c
}

func (p *pausing) resume(c *cobra.Command, a *app, name string) error {
	return a.withRepair(c.Context(), func(ctx context.Context, admin store.Admin) error {
		pauser, err := pauserOf(admin)
		if err != nil {
			return err
		}
		if err := p.target(ctx, c, admin, name); err != nil {
			return err
		}
		all, err := pauser.Pauses(ctx, p.act.Sink)
		if err != nil {
			return err
		}
		if err := pauser.Resume(ctx, p.act); err != nil {
			return err
		}
		was := store.Pause{Sink: p.act.Sink, Kind: p.act.Kind, Name: p.act.Name}
		for i := range all {
			if store.ComparePauses(all[i], was) == 0 {
				was = all[i]
			}
		}
		if err := a.emitPause(&was); err != nil {
			return err
		}
		if p.act.DryRun {
			a.say("it would be resumed")
			return nil
		}
		a.say("resumed: what it held goes out, within a second")
		return nil
	})
}

// pauserOf is what pauses in this outbox.
func pauserOf(admin store.Admin) (store.Pauser, error) {
	if p, ok := admin.(store.Pauser); ok {
		return p, nil
	}
	return nil, &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Op: "pause", Detail: "this database knows no pauses"}
}

func newPauses(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "pauses",
		Short:   "List what is paused, by whom and why",
		Example: `  onward pauses list`,
	}, newPausesList(a))
}

func newPausesList(a *app) *cobra.Command {
	var sink string
	c := &cobra.Command{
		Use:   "list",
		Short: "List what is paused, by whom and why",
		Long: `Lists the pauses that have not ended: of each sink its own first, then topics, then keys. A pause that
has reached its end is no longer listed; the audit keeps who paused and who resumed.`,
		Example: `  onward pauses list
  onward pauses list --sink orders -o json | jq '.pauses[] | select(.expires_at == null)'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				pauser, err := pauserOf(admin)
				if err != nil {
					return err
				}
				all, err := pauser.Pauses(ctx, sink)
				if err != nil {
					return err
				}
				document := struct {
					Pauses []store.Pause `json:"pauses"`
				}{append([]store.Pause{}, all...)}
				if err := a.emit(document, anys(all), func() *table { return pausesTable(all) }); err != nil {
					return err
				}
				a.say("%s", plural(len(all), "pause"))
				return nil
			})
		},
	}
	c.Flags().StringVar(&sink, "sink", "", "of this `sink`")
	return c
}

func (a *app) emitPause(p *store.Pause) error {
	return a.emit(p, []any{p}, func() *table { return pausesTable([]store.Pause{*p}) })
}

func pausesTable(all []store.Pause) *table {
	t := newTable("SINK", "PAUSED", "NAME", "REASON", "BY", "SINCE (UTC)", "UNTIL (UTC)")
	for i := range all {
		p := &all[i]
		until := "somebody resumes"
		if p.ExpiresAt != nil {
			until = clock(*p.ExpiresAt)
		}
		t.add(text(p.Sink), text(string(p.Kind)), text(short(p.Name, 40)), text(short(p.Reason, 60)), text(p.Actor), text(clock(p.CreatedAt)), text(until))
	}
	return t
}

// pauseWords names a pause as the command line does.
func pauseWords(p *store.Pause) string {
	if p.Kind == store.PauseSink {
		return "sink " + shellWord(p.Sink)
	}
	return string(p.Kind) + " " + shellWord(p.Name) + " --sink " + shellWord(p.Sink)
}

// pauseText writes "paused (topic orders): the broker moves, by ann, until 2026-01-31 10:00:00 UTC".
func pauseText(p *store.Pause) string {
	what := string(p.Kind)
	if p.Name != "" {
		what += " " + p.Name
	}
	until := "until somebody resumes"
	if p.ExpiresAt != nil {
		until = "until " + clock(*p.ExpiresAt) + " UTC"
	}
	return fmt.Sprintf("paused (%s): %s, by %s, %s", what, p.Reason, p.Actor, until)
}

// pausesText writes "sink, 2 topics, 1 key".
func pausesText(all []store.Pause) string {
	counts := map[store.PauseKind]int{}
	for i := range all {
		counts[all[i].Kind]++
	}
	var parts []string
	if counts[store.PauseSink] > 0 {
		parts = append(parts, "sink")
	}
	for _, kind := range []store.PauseKind{store.PauseTopic, store.PauseKey} {
		if n := counts[kind]; n > 0 {
			parts = append(parts, plural(n, string(kind)))
		}
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// sayPaused says what is paused, and of many the first.
func (a *app) sayPaused(k *store.SinkStatus) {
	const most = 5
	for i := range k.Pauses[:min(len(k.Pauses), most)] {
		a.say("sink %s: %s", k.Name, pauseText(&k.Pauses[i]))
	}
	if n := len(k.Pauses) - most; n > 0 {
		a.say("sink %s: %s more; `onward pauses list --sink %s` has them", k.Name, plural(n, "pause"), shellWord(k.Name))
	}
}
