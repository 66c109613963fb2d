package cli

import (
	"github.com/spf13/cobra"
)

func newDead(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "dead",
		Short: "List, show, requeue and discard dead letters",
		Long: `A dead letter is a message that gave up: its attempts are used up, or the broker will never take it.
It is kept with its cause until somebody requeues or discards it. With on_dead: block (the
default) the later messages of its key wait for that; with skip they go on.`,
		Example: `  onward dead list --sink orders
  onward dead show ID
  onward dead requeue ID
  onward dead discard ID --reason "customer was deleted"`,
	}, newDeadList(a), newDeadShow(a), newDeadRequeue(a), newDeadDiscard(a))
}
