package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/store"
)

func newPartitions(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "partitions",
		Short:   "List partitions: who holds them, and how far they are",
		Example: `  onward partitions list --sink orders`,
	}, newPartitionsList(a))
}

func newPartitionsList(a *app) *cobra.Command {
	var sink string
	c := &cobra.Command{
		Use:   "list",
		Short: "List partitions with owner, epoch and sequence number",
		Long: `Lists the partitions of each sink. EPOCH grows with each owner; everything up to SEQ has been handed
over, but for what committed late; a partition without RELAY is free and is claimed by a relay that
holds fewer than its share.`,
		Example: `  onward partitions list
  onward partitions list --sink orders -o jsonl | jq 'select(.relay == "")'`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin store.Admin) error {
				all, err := admin.Partitions(ctx, sink)
				if err != nil {
					return err
				}
				return a.emitPartitions(all)
			})
		},
	}
	c.Flags().StringVar(&sink, "sink", "", "of this `sink`")
	return c
}

func (a *app) emitPartitions(all []store.PartitionInfo) error {
	views := make([]partitionView, 0, len(all))
	free := 0
	for _, p := range all {
		views = append(views, partitionView{
			Sink: p.Sink, Partition: p.Partition, Relay: p.Relay, Epoch: p.Epoch, Seq: p.Seq, FreedAt: optionalTime(p.FreedAt), Parked: p.Parked,
		})
		if p.Relay == "" {
			free++
		}
	}
	document := struct {
		Partitions []partitionView `json:"partitions"`
	}{views}
	err := a.emit(document, anys(views), func() *table {
		t := newTable("SINK", "PARTITION", "RELAY", "EPOCH", "SEQ", "PARKED", "FREED (UTC)")
		for _, p := range all {
			relay, freed := text(p.Relay), "-"
			if p.Relay == "" {
				relay, freed = cell{text: "free", style: yellow}, clock(p.FreedAt)
			}
			t.add(text(p.Sink), number(count(int64(p.Partition))), relay, number(count(p.Epoch)), number(count(p.Seq)), number(count(p.Parked)), text(freed))
		}
		return t
	})
	a.say("%s, %d free", plural(len(all), "partition"), free)
	return err
}
