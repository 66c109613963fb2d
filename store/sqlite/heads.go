package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/onwardhq/onward/store"
)

// Heads returns parked messages that are due. Scheduled ones that are due while others of their key wait are placed
// behind those first.
func (s *Session) Heads(ctx context.Context, partitions []int, most int) (heads store.Heads, err error) {
	const op = "heads"
	if err := s.usable(op, false); err != nil {
		return heads, err
	}
	joining, sweep := false, false
	look := func(c *call) error {
		return c.read(func() error {
			v, err := s.look(c)
			if err != nil {
				return err
			}
			if heads.Pauses, err = c.pauses(s.sink); err != nil || !v.held || !slices.Contains(partitions, 0) {
				return err
			}
			if _, err := c.row("sweepable", []any{s.sink, v.now}, &sweep); err != nil {
				return err
			}
			if _, err := c.row("joining", []any{s.sink}, &joining); err != nil || joining {
				return err
			}
			return c.heads(&heads, s.sink, v.now, most)
		})
	}
	err = s.store.reader.use(ctx, look)
	if err == nil && joining {
		if err = s.joinLines(ctx); err == nil {
			err = s.store.reader.use(ctx, look)
		}
	}
	if err == nil && sweep {
		err = s.sweepPauses(ctx)
	}
	return heads, s.failed(op, err)
}

// sweepPauses removes what has ended and holds nothing.
func (s *Session) sweepPauses(ctx context.Context) error {
	return s.store.writer.use(ctx, func(c *call) error {
		return c.write(func() error {
			_, err := c.exec("sweep_pauses", s.sink)
			return err
		})
	})
}

// joinLines places scheduled messages that are due behind what their keys have waiting.
func (s *Session) joinLines(ctx context.Context) error {
	return s.store.writer.use(ctx, func(c *call) error {
		return c.write(func() error {
			v, err := s.look(c)
			if err == nil {
				err = s.check(v)
			}
			if err == nil && v.held {
				_, err = c.exec("join_line", s.sink)
			}
			return err
		})
	})
}

// heads adds what is due by its own time, and then what pauses held that have ended.
func (c *call) heads(heads *store.Heads, sink string, now int64, most int) error {
	heads.Due = nil
	given := map[string]bool{}
	var row parkedRow
	take := func(rows *sql.Rows) (bool, error) {
		if heads.More = len(heads.Due) >= most; heads.More {
			return true, nil
		}
		var due int64
		if err := rows.Scan(append(row.fields(), &due)...); err != nil {
			return false, err
		}
		if row.Key != "" && given[row.Key] {
			return false, nil
		}
		given[row.Key] = true
		p, err := row.parked()
		p.Overdue = time.Duration(now-due) * time.Microsecond
		heads.Due = append(heads.Due, p)
		return false, err
	}
	err := c.query("heads", []any{sink, now}, take)
	if err == nil && !heads.More {
		err = c.query("released", []any{sink, now, most + 1}, take)
	}
	if err != nil {
		return err
	}
	var next sql.NullInt64
	if _, err = c.row("next_due", []any{sink, now}, &next); err == nil && next.Valid {
		heads.Next = time.Duration(min(next.Int64-now, int64(longest/time.Microsecond))) * time.Microsecond
	}
	return err
}

// longest keeps a time in the year 9999 a duration.
const longest = 1000 * time.Hour

// Followers returns the parked messages of a key, from the place on.
func (s *Session) Followers(ctx context.Context, key store.Key, after store.Place, room store.Room) (found []store.Parked, err error) {
	const op = "followers"
	if err := s.usable(op, false); err != nil {
		return nil, err
	}
	err = s.store.reader.use(ctx, func(c *call) error {
		return c.read(func() error {
			v, err := s.look(c)
			if err != nil || !v.held || key.Partition != 0 || key.Key == "" {
				return err
			}
			bytes := room.Bytes
			var row parkedRow
			return c.query("followers", []any{s.sink, key.Key, after.Order, after.Seq, room.Messages}, func(rows *sql.Rows) (bool, error) {
				if err := rows.Scan(row.fields()...); err != nil {
					return false, err
				}
				if bytes -= len(row.payload); bytes < 0 && len(found) > 0 {
					return true, nil
				}
				p, err := row.parked()
				found = append(found, p)
				return false, err
			})
		})
	})
	return found, s.failed(op, err)
}

// parkedRow takes the columns of a parked message.
type parkedRow struct {
	recordRow
	place            int64
	reason           string
	attempts, before int
}

func (r *parkedRow) fields() []any {
	return append(r.recordRow.fields(), &r.place, &r.reason, &r.attempts, &r.before)
}

func (r *parkedRow) parked() (store.Parked, error) {
	record, err := r.record()
	return store.Parked{
		Record: record, Place: store.Place{Order: r.place, Seq: r.Seq}, Reason: store.Reason(r.reason), Attempts: r.attempts, Before: r.before,
	}, err
}
