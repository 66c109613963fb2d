package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func newDeadDiscard(a *app) *cobra.Command {
	t := &act{verb: "discard", done: "discarded", parkedToo: true}
	t.do = func(ctx context.Context, admin store.Admin, one store.Act) error { return admin.Discard(ctx, one) }
	c := &cobra.Command{
		Use:   "discard ID... --reason WHY",
		Short: "Give dead letters up for good; their keys go on",
		Long: `Removes dead letters for good: they are never published, and the next message of their key goes on. It
cannot be undone. The audit keeps who did it and why, so a reason is required. An id may name a
parked message as well.

More than one asks first; without a terminal it needs --yes.`,
		Example: `  onward dead discard 0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e --reason "customer was deleted"
  onward dead discard --topic audit --code payload-too-large --reason "INC-42" --dry-run`,
		RunE: func(c *cobra.Command, args []string) error {
			if t.reason == "" {
				return &outbox.Error{
					Code: store.ErrReasonRequired.Code, Op: "discard", Detail: store.ErrReasonRequired.Detail,
					Hint: `say why: --reason "..."`,
				}
			}
			return t.run(c, a, args)
		},
	}
	t.register(c)
	c.Flags().StringVar(&t.reason, "reason", "", "`why`; required, kept in the audit")
	return c
}
