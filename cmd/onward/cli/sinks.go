package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newSinks(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "sinks",
		Short:   "List sinks, show who serves one and how, and remove one",
		Example: `  onward sinks list`,
	}, newSinksList(a), newSinksShow(a), newSinksRemove(a))
}

func newSinksList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List sinks: what they take, and who serves them",
		Long: `Lists every sink that a relay has registered. Each has cursors of its own; until it is removed, what it
has not published is kept for it, whether a relay serves it or not.`,
		Example: `  onward sinks list
  onward sinks list -o json | jq '.sinks[] | select(.serving == [])'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				s, err := admin.Status(ctx)
				if err != nil {
					return err
				}
				return a.emitSinks(&s)
			})
		},
	}
}

func (a *app) emitSinks(s *store.Status) error {
	views := viewStatus(s).Sinks
	document := struct {
		Sinks []sinkStatusView `json:"sinks"`
	}{views}
	err := a.emit(document, anys(views), func() *table {
		t := newTable("SINK", "TOPICS", "EXCLUDE", "BACKLOG", "RELAYS", "CREATED (UTC)", "SEEN (UTC)")
		for i := range s.Sinks {
			k := &s.Sinks[i]
			relays := number(count(int64(len(k.Serving))))
			if len(k.Serving) == 0 || differs(k) {
				relays.style = yellow
			}
			t.add(text(k.Name), text(topicsText(k.Topics)), text(patternsText(k.Exclude)), number(atLeast(k.Backlog, k.BacklogAtLeast)), relays,
				text(clock(k.CreatedAt)), text(clock(k.SeenAt)))
		}
		return t
	})
	if err == nil {
		a.say("%s", plural(len(s.Sinks), "sink"))
	}
	return err
}

func patternsText(patterns []outbox.Pattern) string {
	words := make([]string, len(patterns))
	for i, p := range patterns {
		words[i] = string(p)
	}
	return strings.Join(words, ",")
}

func topicsText(patterns []outbox.Pattern) string {
	if len(patterns) == 0 {
		return ">" // every topic
	}
	return patternsText(patterns)
}

func newSinksShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show SINK",
		Short: "Show one sink, with the settings of each relay that serves it",
		Long: `Shows a sink, and a line for each live relay that serves it: its settings for this sink, those that are
not the defaults. Where they differ it matters which relay holds a partition; give all relays the same
configuration.`,
		Example: `  onward sinks show orders`,
		Args:    takes(1, 1, "a sink"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				k, s, err := findSink(ctx, admin, args[0])
				if err != nil {
					return err
				}
				if a.output != outTable {
					s.Sinks = []store.SinkStatus{*k}
					views := viewStatus(s).Sinks
					return a.emit(views[0], anys(views), nil)
				}
				a.say("sink %s takes %s; %s in the backlog, %s dead", k.Name, takesText(k), plural(int(k.Backlog), "message"), count(k.Dead))
				if len(k.Serving) == 0 {
					a.say("no live relay serves it: what it has not published waits")
					return nil
				}
				err = a.emit(nil, nil, func() *table {
					t := newTable("RELAY", "SETTINGS")
					for _, r := range k.Serving {
						settings := text(r.Settings)
						if r.Settings == "" {
							settings = text("defaults")
						}
						if differs(k) {
							settings.style = yellow
						}
						t.add(text(r.Relay), settings)
					}
					return t
				})
				if err == nil && differs(k) {
					a.say("warning: they differ; give all relays of a sink the same configuration")
				}
				return err
			})
		},
	}
}

func takesText(k *store.SinkStatus) string {
	text := "every topic"
	if len(k.Topics) > 0 {
		text = patternsText(k.Topics)
	}
	if len(k.Exclude) > 0 {
		text += " without " + patternsText(k.Exclude)
	}
	return text
}

func findSink(ctx context.Context, admin store.Admin, name string) (*store.SinkStatus, *store.Status, error) {
	s, err := admin.Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	var known []string
	for i := range s.Sinks {
		if s.Sinks[i].Name == name {
			return &s.Sinks[i], &s, nil
		}
		known = append(known, s.Sinks[i].Name)
	}
	hint := "no relay has registered a sink yet"
	if known != nil {
		hint = "the sinks are: " + strings.Join(known, ", ")
	}
	return nil, nil, &outbox.Error{Code: store.ErrNotFound.Code, Op: "find sink", Detail: fmt.Sprintf("there is no sink %q", name), Hint: hint}
}

func newSinksRemove(a *app) *cobra.Command {
	var yes, dryRun bool
	var reason string
	c := &cobra.Command{
		Use:   "remove SINK --reason WHY",
		Short: "Forget a sink, with its cursors and its parked and dead messages",
		Long: `Forgets a sink: how far it was, and its parked and dead messages, which are then published by nobody. The
log keeps its messages for the other sinks. A relay that is started with a sink of this name makes a new
one, from where its setting "start" says.

It is refused while a live relay serves the sink. The audit keeps who did it and why. It asks first;
without a terminal it needs --yes.`,
		Example: `  onward sinks remove audit --reason "replaced by audit-v2" --dry-run
  onward sinks remove audit --reason "replaced by audit-v2"`,
		Args: takes(1, 1, "a sink"),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return &outbox.Error{Code: store.ErrReasonRequired.Code, Op: "remove sink", Detail: store.ErrReasonRequired.Detail, Hint: `say why: --reason "..."`}
			}
			return a.withRepair(c.Context(), func(ctx context.Context, admin store.Admin) error {
				k, _, err := findSink(ctx, admin, args[0])
				if err != nil {
					return err
				}
				act := store.Act{Sink: k.Name, Actor: actor(), Reason: reason, DryRun: true}
				if err := admin.RemoveSink(ctx, act); err != nil {
					return err
				}
				parked := int64(0)
				for _, n := range k.Parked {
					parked += n
				}
				lost := fmt.Sprintf("%s not published yet, %s parked, %s dead", atLeast(k.Backlog, k.BacklogAtLeast), atLeast(parked, k.CountsAtLeast), atLeast(k.Dead, k.CountsAtLeast))
				if dryRun {
					a.say("would remove sink %s with what it has: %s", k.Name, lost)
					return nil
				}
				if !yes {
					if err := a.confirm(ctx, "remove sink "+k.Name+" with what it has ("+lost+")", "it cannot be undone"); err != nil {
						return err
					}
				}
				act.DryRun = false
				if err := admin.RemoveSink(context.WithoutCancel(ctx), act); err != nil {
					return err
				}
				a.say("removed sink %s: %s", k.Name, lost)
				return nil
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`why`; required, kept in the audit")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and change nothing")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}
