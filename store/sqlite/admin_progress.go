package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/onwardhq/onward/store"
)

var _ store.Progress = (*Admin)(nil)

// Minutes returns the minutes since a time in which the sink published.
func (a *Admin) Minutes(ctx context.Context, sink string, since time.Time) (all []store.Minute, err error) {
	err = a.read(ctx, "read progress", sink, func(c *call) error {
		return c.query("minutes", []any{sink, since.Truncate(time.Minute).UnixMicro()}, func(rows *sql.Rows) (bool, error) {
			var m store.Minute
			var at int64
			err := rows.Scan(&at, &m.Published)
			m.At = microTime(at)
			all = append(all, m)
			return false, err
		})
	})
	return all, err
}

// published says of a message's states when it was published.
func (c *call) published(m *store.MessageInfo) error {
	return c.query("published", []any{m.Seq}, func(rows *sql.Rows) (bool, error) {
		var sink string
		var after, by int64
		err := rows.Scan(&sink, &after, &by)
		for i := range m.States {
			if s := &m.States[i]; s.Sink == sink && s.State == store.StatePublished {
				after, by := microTime(after), microTime(by)
				s.PublishedAfter, s.PublishedBy = &after, &by
			}
		}
		return false, err
	})
}
