package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Admin answers what people ask of an outbox, and acts for them. It is a store.Admin and a store.Tracker. Safe for
// concurrent use. Each call uses one connection of the pool; reads hold nobody up and are never held up.
type Admin struct {
	db   *sql.DB
	wait time.Duration
	sql  map[string]string
	scan int // rows that a list reads where no index serves it: maxScan, or fewer in tests
}

var (
	_ store.Admin   = (*Admin)(nil)
	_ store.Tracker = (*Admin)(nil)
)

// NewAdmin returns an Admin of the outbox. It asks the database nothing yet; the pool stays the caller's.
func NewAdmin(db *sql.DB, c Config) (*Admin, error) {
	n, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Admin{db: db, wait: c.BusyTimeout, sql: n.statements("admin"), scan: maxScan}, nil
}

func (a *Admin) use(ctx context.Context, op string, f func(*call) error) error {
	l := newLine(a.db, a.sql, a.wait)
	defer l.giveBack()
	return failed(op, l.use(ctx, f))
}

// read runs f in a transaction that sees one moment. A sink that is named must exist.
func (a *Admin) read(ctx context.Context, op, sink string, f func(*call) error) error {
	return a.use(ctx, op, func(c *call) error {
		return c.read(func() error {
			if sink != "" {
				if err := c.checkSink(sink); err != nil {
					return err
				}
			}
			return f(c)
		})
	})
}

// checkSink refuses a sink that does not exist, and names those that do.
func (c *call) checkSink(sink string) error {
	var known []string
	err := c.query("sinks", nil, func(rows *sql.Rows) (bool, error) {
		var name string
		err := rows.Scan(&name)
		known = append(known, name)
		return name == sink, err
	})
	if err != nil || len(known) > 0 && known[len(known)-1] == sink {
		return err
	}
	hint := "no relay has registered a sink yet"
	if len(known) > 0 {
		hint = "the sinks are: " + strings.Join(known, ", ")
	}
	return &outbox.Error{Code: store.ErrNotFound.Code, Detail: fmt.Sprintf("there is no sink %q", sink), Hint: hint}
}

// Partitions returns the partition of a sink (empty: of all sinks). Parked messages are counted up to 100,000.
func (a *Admin) Partitions(ctx context.Context, sink string) (all []store.PartitionInfo, err error) {
	err = a.read(ctx, "list partitions", sink, func(c *call) error {
		return c.query("partitions", []any{sink}, func(rows *sql.Rows) (bool, error) {
			var p store.PartitionInfo
			var freed sql.NullInt64
			err := rows.Scan(&p.Sink, &p.Relay, &p.Epoch, &p.Seq, &freed, &p.Parked)
			p.FreedAt = nullTime(freed)
			all = append(all, p)
			return false, err
		})
	})
	return all, err
}

// Relays returns the registered relays by name, expired ones included until another relay has taken them over.
func (a *Admin) Relays(ctx context.Context) (all []store.RelayInfo, err error) {
	err = a.read(ctx, "list relays", "", func(c *call) error {
		return c.query("relays", nil, func(rows *sql.Rows) (bool, error) {
			var r store.RelayInfo
			var id, sinks string
			var started, beat, until, lease int64
			err := rows.Scan(&id, &r.Name, &sinks, &r.Partitions, &r.Draining, &r.Live, &r.Host, &r.PID, &r.Version, &started, &beat, &until, &lease)
			if err != nil {
				return false, err
			}
			if r.ID, err = outbox.ParseID(id); err != nil {
				return false, err
			}
			if err := json.Unmarshal([]byte(sinks), &r.Sinks); err != nil {
				return false, err
			}
			r.StartedAt, r.HeartbeatAt, r.LeasedUntil = microTime(started), microTime(beat), microTime(until)
			r.Lease = time.Duration(lease) * time.Microsecond
			all = append(all, r)
			return false, nil
		})
	})
	return all, err
}

// Status returns the outbox at a glance. Counting stops at 100,000 of each, and says so.
func (a *Admin) Status(ctx context.Context) (status store.Status, err error) {
	err = a.read(ctx, "status", "", func(c *call) error {
		var now int64
		if _, err := c.row("now", nil, &now); err != nil {
			return err
		}
		if status.Info, err = c.info(schemaVersion); err != nil && outbox.CodeOf(err) == store.ErrSchemaMissing.Code {
			return err
		}
		status.Now = microTime(now)
		if _, err := c.row("live", nil, &status.RelaysLive); err != nil {
			return err
		}
		var cursors []int64
		err := c.query("status", nil, func(rows *sql.Rows) (bool, error) {
			s, cursor, err := scanStatus(rows)
			status.Sinks, cursors = append(status.Sinks, s), append(cursors, cursor)
			return false, err
		})
		for i := range status.Sinks {
			if err == nil {
				err = c.backlog(&status.Sinks[i], cursors[i], now)
			}
			if err == nil {
				err = c.exceptions(&status.Sinks[i])
			}
			var held orZero
			if err == nil {
				_, err = c.row("held", []any{cursors[i]}, &held)
				status.Sinks[i].RetentionHeld = time.Duration(min(max(held, 0), 9e15)) * time.Microsecond
			}
		}
		if err == nil {
			err = c.unrouted(&status)
		}
		if err != nil {
			return err
		}
		pauses, err := c.pauses("")
		for i := range status.Sinks {
			status.Sinks[i].Pauses = store.OfSink(pauses, status.Sinks[i].Name)
		}
		return err
	})
	return status, err
}

func scanStatus(rows *sql.Rows) (s store.SinkStatus, cursor int64, err error) {
	var owned bool
	var settled sql.NullInt64
	var created, seen int64
	var topics, exclude string
	if err := rows.Scan(&s.Name, &topics, &exclude, &created, &seen, &owned, &s.Published, &settled, &cursor, &s.Dead, &s.Rate); err != nil {
		return s, 0, err
	}
	s.Selection, err = selectionOf(topics, exclude)
	s.PartitionsFree = 1
	if owned {
		s.PartitionsOwned, s.PartitionsFree = 1, 0
	}
	s.CreatedAt, s.SeenAt, s.LastSettle = microTime(created), microTime(seen), nullTime(settled)
	s.Dead, s.CountsAtLeast = bounded(s.Dead)
	return s, cursor, err
}

func bounded(n int64) (int64, bool) { return min(n, maxScan), n > maxScan }

// backlog counts what the cursor has not passed and the sink takes, and says who serves it.
func (c *call) backlog(s *store.SinkStatus, cursor, now int64) error {
	read := int64(0)
	err := c.query("backlog", []any{cursor}, func(rows *sql.Rows) (bool, error) {
		var topic string
		var n, oldest int64
		if err := rows.Scan(&topic, &n, &oldest); err != nil {
			return false, err
		}
		if read += n; s.Match(topic) {
			s.Backlog += n
			s.Lag = max(s.Lag, time.Duration(now-oldest)*time.Microsecond)
		}
		return false, nil
	})
	s.BacklogAtLeast = read > maxScan
	s.Backlog = min(s.Backlog, maxScan)
	if err != nil {
		return err
	}
	return c.query("serving", []any{s.Name}, func(rows *sql.Rows) (bool, error) {
		var v store.Serving
		err := rows.Scan(&v.Relay, &v.Settings)
		s.Serving = append(s.Serving, v)
		return false, err
	})
}

func (c *call) exceptions(s *store.SinkStatus) error {
	s.Parked = map[store.Reason]int64{}
	total := int64(0)
	err := c.query("parked_by_reason", []any{s.Name}, func(rows *sql.Rows) (bool, error) {
		var reason store.Reason
		var n int64
		err := rows.Scan(&reason, &n)
		s.Parked[reason] = n
		total += n
		return false, err
	})
	if err == nil {
		_, err = c.row("blocked_keys", []any{s.Name}, &s.BlockedKeys)
	}
	s.CountsAtLeast = s.CountsAtLeast || total > maxScan || s.BlockedKeys > maxScan
	return err
}

// actorOf is who acts: SQLite has no users, so it is the one whose process this is.
func actorOf(act store.Act) string {
	if actor := strings.TrimSpace(act.Actor); actor != "" {
		return actor
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}
