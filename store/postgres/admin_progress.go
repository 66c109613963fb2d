package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

var _ store.Progress = (*Admin)(nil)

// Minutes returns the minutes since a time in which the sink published. Each is the sum over its relays; what a relay published
// around the moment at which it left counts in the minute of its last settle.
func (a *Admin) Minutes(ctx context.Context, sink string, since time.Time) (all []store.Minute, err error) {
	err = a.read(ctx, "read progress", func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, sink); err != nil {
			return err
		}
		all, err = collect(ctx, tx, a.sql["minutes"], []any{sink, since.Truncate(time.Minute)}, func(row pgx.CollectableRow) (m store.Minute, err error) {
			err = row.Scan(&m.At, &m.Published)
			return m, err
		})
		return err
	})
	return all, err
}

// addPublished says of a message's states when it was published.
func (a *Admin) addPublished(ctx context.Context, tx pgx.Tx, m *store.MessageInfo) error {
	rows, err := tx.Query(ctx, a.sql["published"], [16]byte(m.ID))
	if err != nil {
		return err
	}
	var sink string
	var after, by time.Time
	_, err = pgx.ForEachRow(rows, []any{&sink, &after, &by}, func() error {
		for i := range m.States {
			if s := &m.States[i]; s.Sink == sink && s.State == store.StatePublished {
				after, by := after, by
				s.PublishedAfter, s.PublishedBy = &after, &by
			}
		}
		return nil
	})
	return err
}
