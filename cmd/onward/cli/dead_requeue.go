package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newDeadRequeue(a *app) *cobra.Command {
	var acceptReorder bool
	t := &act{verb: "requeue", done: "requeued"}
	t.do = func(ctx context.Context, admin store.Admin, one store.Act) error {
		return admin.Requeue(ctx, one, acceptReorder)
	}
	c := &cobra.Command{
		Use:   "requeue [ID...]",
		Short: "Try dead letters again, at their place in their key",
		Long: `Makes dead letters parked messages again: the same id, the same place in their key, a fresh budget of
attempts. A running relay takes them up within a second.

Where later messages of the key were published meanwhile (on_dead: skip), a requeue would break the
key's order. It is refused, with their number, unless --accept-reorder says that this is all right.

Several are requeued oldest first, each by itself: what is refused does not stop the others. More
than one asks first; without a terminal it needs --yes.`,
		Example: `  onward dead requeue 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e
  onward dead requeue --sink orders --code rejected --since 1h --dry-run
  onward dead requeue --topic orders --yes`,
		RunE: func(c *cobra.Command, args []string) error { return t.run(c, a, args) },
	}
	t.register(c)
	c.Flags().BoolVar(&acceptReorder, "accept-reorder", false, "although later messages of its key were published")
	return c
}
