package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

// lists makes c a command that writes one page of what its filters select; when says what --since and --until look at.
func (a *app) lists(c *cobra.Command, filters []string, when string, page func(context.Context, store.Admin, store.Filter) error) *cobra.Command {
	var f filterFlags
	f.register(c, filters, when)
	f.registerPage(c)
	c.Args = takes(0, 0, "")
	c.RunE = func(c *cobra.Command, _ []string) error {
		filter, err := f.filter(c, a.env.Now())
		if err != nil {
			return err
		}
		return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
			return page(ctx, admin, filter)
		})
	}
	return c
}

// sayMore says how a list ended.
func (a *app) sayMore(n int, what, next string, partial bool) {
	switch {
	case partial:
		a.say("%s; the search read 100,000 and stopped: go on with --after %s", plural(n, what), next)
	case next != "":
		a.say("%s; there are more: go on with --after %s", plural(n, what), next)
	default:
		a.say("%s", plural(n, what))
	}
}
