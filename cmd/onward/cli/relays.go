package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newRelays(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "relays",
		Short:   "List the relays that run",
		Example: `  onward relays list`,
	}, newRelaysList(a))
}

func newRelaysList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List relays with their leases and shares",
		Long: `Lists the registered relays. One that has not renewed its lease in time is "expired" until another one
has taken over its partitions; one that is "draining" takes no new ones and is about to leave.`,
		Example: `  onward relays list
  onward relays list -o json | jq '.relays[] | select(.live | not)'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				all, err := admin.Relays(ctx)
				if err != nil {
					return err
				}
				return a.emitRelays(all)
			})
		},
	}
}

func (a *app) emitRelays(all []store.RelayInfo) error {
	views := make([]relayView, 0, len(all))
	for i := range all {
		r := &all[i]
		views = append(views, relayView{
			ID: r.ID.String(), Name: r.Name, Host: r.Host, PID: r.PID, Version: r.Version, Sinks: r.Sinks, Partitions: r.Partitions,
			Live: r.Live, Draining: r.Draining, StartedAt: r.StartedAt.UTC(), HeartbeatAt: r.HeartbeatAt.UTC(),
			LeasedUntil: r.LeasedUntil.UTC(), LeaseMS: millis(r.Lease),
		})
	}
	document := struct {
		Relays []relayView `json:"relays"`
	}{views}
	err := a.emit(document, anys(views), func() *table {
		t := newTable("NAME", "STATE", "HOST", "PID", "VERSION", "SINKS", "PARTITIONS", "STARTED (UTC)", "LEASED UNTIL (UTC)")
		for i := range all {
			r := &all[i]
			t.add(text(r.Name), relayState(r), text(r.Host), number(strconv.Itoa(r.PID)), text(r.Version), text(strings.Join(r.Sinks, ",")),
				number(count(int64(r.Partitions))), text(clock(r.StartedAt)), text(clock(r.LeasedUntil)))
		}
		return t
	})
	a.say("%s", plural(len(all), "relay"))
	return err
}

func relayState(r *store.RelayInfo) cell {
	switch {
	case !r.Live:
		return cell{text: "expired", style: red}
	case r.Draining:
		return cell{text: "draining", style: yellow}
	default:
		return cell{text: "live", style: green}
	}
}
