package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newDeadShow(a *app) *cobra.Command {
	var sink string
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter: cause, attempts, what waits behind it, payload",
		Long: `Shows a dead letter whole: the message, the error of each attempt as it was kept, and how many
messages of its key wait behind it. A message that is dead in several sinks is shown for each.`,
		Example: `  onward dead show 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e
  onward dead show 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e -o json | jq '.dead[].tries'`,
		Args: takes(1, 1, "the id of a message"),
	}
	c.Flags().StringVar(&sink, "sink", "", "of this `sink`")
	c.RunE = func(c *cobra.Command, args []string) error {
		id, err := outbox.ParseID(args[0])
		if err != nil {
			return err
		}
		return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
			list, err := admin.Dead(ctx, store.Filter{ID: id, Sink: sink})
			if err != nil {
				return err
			}
			if len(list.Dead) == 0 {
				m, err := admin.Message(ctx, id)
				if err != nil {
					return err
				}
				return notDead(&m, "show dead letter", store.ErrNotFound.Code)
			}
			return a.emitDeadOne(list.Dead)
		})
	}
	return c
}

// notDead says what the message is instead.
func notDead(m *store.MessageInfo, op string, code outbox.Code) error {
	e := &outbox.Error{Code: code, Op: op, Detail: "it is not dead"}
	for _, s := range m.States {
		e.Detail += fmt.Sprintf("; in sink %s it is %s", s.Sink, stateText(&s))
	}
	e.Hint = "`onward messages show " + m.ID.String() + "` shows it"
	return e
}

func (a *app) emitDeadOne(all []store.DeadInfo) error {
	if a.output == outTable {
		return a.writeDead(all)
	}
	views := make([]messageView, 0, len(all))
	for i := range all {
		views = append(views, viewDead(&all[i], true))
	}
	document := struct {
		Dead []messageView `json:"dead"`
	}{views}
	return a.emit(document, anys(views), nil)
}

func (a *app) writeDead(all []store.DeadInfo) error {
	s := &sheet{w: a.out(), paint: a.paint(a.env.OutIsTerminal)}
	for i := range all {
		d := &all[i]
		if i > 0 {
			s.printf("\n")
		}
		s.line("sink", d.Sink)
		s.record(&d.Record)
		s.line("code", string(d.Code))
		s.line("error", d.Error)
		s.line("attempts", fmt.Sprintf("%s, from %s to %s UTC, last on relay %s", count(int64(d.Attempts)), clock(d.FirstFailure), clock(d.LastFailure), d.Relay))
		blocks := "no: its key goes on"
		if d.Blocks {
			blocks = "yes: " + plural(d.Behind, "message") + " of its key behind it"
		}
		s.line("blocks", blocks)
		for _, t := range d.Tries {
			s.line(fmt.Sprintf("attempt %d", t.No), fmt.Sprintf("%s UTC, %s after %s: %s %s", clock(t.At), t.Outcome, span(t.Took), t.Code, t.Error))
		}
		s.payload(&d.Record)
	}
	return s.err
}
