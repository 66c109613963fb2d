package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newMessages(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "messages",
		Short: "List and show messages and where they stand",
		Example: `  onward messages list --key order-42
  onward messages show 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e`,
	}, newMessagesList(a), newMessagesShow(a))
}

func newMessagesList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "List messages, newest first",
		Long: `Lists messages, newest first, with their state: pending, parked (and why), published, dead or
discarded. Payloads are left out; ` + "`onward messages show ID`" + ` has them.

--id, --key, and what is parked or dead are found at once. Any other filter reads at most
100,000 messages; if it stops there it says so, and --after goes on.`,
		Example: `  onward messages list --limit 20
  onward messages list --key order-42
  onward messages list --state parked --sink orders
  onward messages list --topic orders --since 10m -o jsonl | jq .id`,
	}
	return a.lists(c, messageFilters, "written", func(ctx context.Context, admin store.Admin, f store.Filter) error {
		list, err := admin.Messages(ctx, f)
		if err != nil {
			return err
		}
		return a.emitMessages(&list)
	})
}

func (a *app) emitMessages(list *store.MessageList) error {
	views := make([]messageView, 0, len(list.Messages))
	for i := range list.Messages {
		views = append(views, viewMessage(&list.Messages[i], false))
	}
	document := struct {
		Messages []messageView `json:"messages"`
		Next     string        `json:"next,omitempty"`
		Partial  bool          `json:"partial,omitempty"`
	}{views, list.Next, list.Partial}
	err := a.emit(document, anys(views), func() *table {
		t := newTable("WRITTEN (UTC)", "ID", "TOPIC", "KEY", "TYPE", "BYTES", "STATE")
		for i := range list.Messages {
			m := &list.Messages[i]
			t.add(text(clock(m.CreatedAt)), text(m.ID.String()), text(m.Topic), text(short(m.Key, 40)), text(short(m.Type, 40)),
				number(count(int64(m.PayloadBytes))), statesCell(m.States))
		}
		return t
	})
	a.sayMore(len(views), "message", list.Next, list.Partial)
	return err
}

// statesCell writes the state, with the sink where there are several.
func statesCell(states []store.SinkState) cell {
	if len(states) == 0 {
		return text("pending") // no sink exists yet; the first begins at the beginning
	}
	var parts []string
	worst := plain
	for _, s := range states {
		part := string(s.State)
		if s.Reason != "" {
			part += " (" + string(s.Reason) + ")"
		}
		if len(states) > 1 {
			part = s.Sink + ": " + part
		}
		parts = append(parts, part)
		if style := stateStyle(s.State); worst != red && style != plain {
			worst = style
		}
	}
	c := text(strings.Join(parts, ", "))
	c.style = worst
	return c
}

func stateStyle(s store.State) style {
	switch s {
	case store.StateDead:
		return red
	case store.StateParked:
		return yellow
	case store.StatePublished:
		return green
	case store.StateDiscarded:
		return faint
	default:
		return plain
	}
}
