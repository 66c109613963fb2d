package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newDeadList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Long: `Lists dead letters, the newest messages first, with the code of the last failure. BLOCKS says that
the later messages of the key wait for it. --since and --until look at when a message died.`,
		Example: `  onward dead list
  onward dead list --code rejected --since 1h
  onward dead list --topic orders -o jsonl | jq -r .id`,
	}
	return a.lists(c, deadFilters, "that died", func(ctx context.Context, admin store.Admin, f store.Filter) error {
		list, err := admin.Dead(ctx, f)
		if err != nil {
			return err
		}
		return a.emitDead(&list)
	})
}

func (a *app) emitDead(list *store.DeadList) error {
	views := make([]messageView, 0, len(list.Dead))
	for i := range list.Dead {
		views = append(views, viewDead(&list.Dead[i], false))
	}
	document := struct {
		Dead    []messageView `json:"dead"`
		Next    string        `json:"next,omitempty"`
		Partial bool          `json:"partial,omitempty"`
	}{views, list.Next, list.Partial}
	err := a.emit(document, anys(views), func() *table {
		t := newTable("DIED (UTC)", "SINK", "ID", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "BLOCKS", "CODE", "ERROR")
		for i := range list.Dead {
			d := &list.Dead[i]
			t.add(text(clock(d.LastFailure)), text(d.Sink), text(d.ID.String()), text(d.Topic), text(short(d.Key, 40)), text(short(d.Type, 40)),
				number(count(int64(d.Attempts))), yesCell(d.Blocks), text(string(d.Code)), text(short(d.Error, 60)))
		}
		return t
	})
	a.sayMore(len(views), "dead letter", list.Next, list.Partial)
	return err
}

func yesCell(yes bool) cell {
	if yes {
		return cell{text: "yes", style: yellow}
	}
	return cell{text: "no"}
}
