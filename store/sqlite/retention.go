package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var _ store.Retainer = (*Store)(nil)

const (
	retainRows = 500 // removed in one transaction: it holds the file's write lock for some milliseconds
	walkRows   = 200 // of the other tables
	walkEvery  = 10 * time.Second
)

// sweep is the memory of retention in this process.
type sweep struct {
	mu     sync.Mutex
	stage  stage
	traces time.Time // when a walk through attempts and positions began last
	dead   time.Time
	sink   string // where a walk stands
	id     string
	no     int64
}

// stage is what retention is at.
type stage uint8

const (
	stageLog stage = iota
	stageDead
	stageAttempts
	stagePositions
	stageProgress
)

// leastProgress is how long copies of cursors stay at the least: people look at the rates of a day.
const leastProgress = 24 * time.Hour

// Retain removes what no sink needs any more, and discards dead letters that are old enough: a store.Retainer. What is removed
// leaves room in the file, which later messages take; the file does not shrink.
func (s *Store) Retain(ctx context.Context, r store.Retention) (done store.Retained, err error) {
	const op = "retain"
	if r.Published < 0 || r.Dead < 0 {
		return done, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: op, Detail: fmt.Sprintf("retention %v, of dead letters %v", r.Published, r.Dead), Hint: "neither is negative",
		}
	}
	s.sweep.mu.Lock()
	defer s.sweep.mu.Unlock()
	var found removable
	leads := true
	err = s.reader.use(ctx, func(c *call) error {
		var id string
		if _, err := c.row("retainer", nil, &id); err != nil {
			return err
		}
		if leads = r.Relay.IsZero() || id == r.Relay.String(); !leads {
			return nil
		}
		return found.look(c, r)
	})
	if err != nil || !leads {
		return done, failed(op, err)
	}
	switch s.sweep.stage {
	case stageLog:
		done.Messages, err = s.removeLog(ctx, r, found)
		done.More = done.Messages == retainRows
	case stageDead:
		done.Dead, done.More, err = s.expire(ctx, r.Dead)
	case stageAttempts:
		done.More, err = s.forget(ctx, "attempts")
	case stagePositions:
		done.More, err = s.forget(ctx, "positions")
	case stageProgress:
		err = s.writer.use(ctx, func(c *call) error {
			_, err := c.exec("forget_progress", max(r.Published, leastProgress).Microseconds())
			return err
		})
	}
	if err != nil {
		return store.Retained{}, failed(op, err)
	}
	if !done.More {
		s.sweep.next(r)
		done.More = s.sweep.stage != stageLog
	}
	return done, nil
}

// next goes on to the next stage that is due.
func (w *sweep) next(r store.Retention) {
	now := time.Now()
	w.sink, w.id, w.no = "", "", 0
	if w.stage == stageLog {
		w.stage = stageDead
		if r.Dead > 0 && (w.dead.IsZero() || now.Sub(w.dead) >= min(r.Dead/16, walkEvery)) {
			w.dead = now
			return
		}
	}
	if w.stage == stageDead {
		w.stage = stageLog
		if w.traces.IsZero() || now.Sub(w.traces) >= max(r.Published/4, walkEvery) {
			w.stage, w.traces = stageAttempts, now
		}
		return
	}
	w.stage = (w.stage + 1) % (stageProgress + 1)
}

// removable is what a look says.
type removable struct {
	passed, old, first, top, marked, now int64
	told                                 string
}

func (f *removable) look(c *call, r store.Retention) error {
	_, err := c.row("removable", []any{r.Published.Microseconds()}, (*orZero)(&f.passed), &f.old, &f.first, &f.top, &f.marked, &f.now, &f.told)
	return err
}

// orZero is a number that may be NULL.
type orZero int64

// Scan takes a number or NULL.
func (n *orZero) Scan(src any) error {
	v, _ := src.(int64)
	*n = orZero(v)
	return nil
}

func (f *removable) upto() int64 { return min(f.passed, f.old) }

func (f *removable) marks(r store.Retention) bool {
	spacing := min(max(r.Published/256, 50*time.Millisecond), 10*time.Minute)
	return r.Published > 0 && f.now-f.marked >= spacing.Microseconds()
}

// removeLog removes messages that every sink has passed, and writes only where there is something to write.
func (s *Store) removeLog(ctx context.Context, r store.Retention, seen removable) (removed int, err error) {
	us := r.Published.Microseconds()
	told := strconv.FormatInt(us, 10)
	if !seen.marks(r) && seen.told == told && (seen.first == 0 || seen.first > seen.upto()) {
		return 0, nil
	}
	err = s.writer.use(ctx, func(c *call) error {
		return c.write(func() error {
			var f removable // a sink may be new since the look
			if err := f.look(c, r); err != nil {
				return err
			}
			if f.told != told {
				if _, err := c.exec("tell", told); err != nil {
					return err
				}
			}
			if f.marks(r) {
				if _, err := c.exec("mark", f.top); err != nil {
					return err
				}
				if _, err := c.exec("unmark", us); err != nil {
					return err
				}
			}
			n, err := c.exec("remove", f.upto(), retainRows)
			removed = int(n)
			return err
		})
	})
	return removed, err
}

// forget removes what is kept of messages that are no more.
func (s *Store) forget(ctx context.Context, table string) (more bool, err error) {
	w := &s.sweep
	sink, id, no := w.sink, w.id, w.no
	read := 0
	err = s.reader.use(ctx, func(c *call) error {
		return c.query(table+"_from", []any{w.sink, w.id, w.no, walkRows}, func(rows *sql.Rows) (bool, error) {
			read++
			return false, rows.Scan(&sink, &id, &no)
		})
	})
	if err != nil || read == 0 {
		return false, err
	}
	to := no
	if table == "positions" {
		to = w.no
	}
	err = s.writer.use(ctx, func(c *call) error {
		_, err := c.exec("forget_"+table+"_to", w.sink, w.id, w.no, sink, id, to)
		return err
	})
	if err == nil {
		w.sink, w.id, w.no = sink, id, no
	}
	return read == walkRows, err
}

// expire discards dead letters that died longer ago than this.
func (s *Store) expire(ctx context.Context, age time.Duration) (discarded int, more bool, err error) {
	type letter struct {
		sink, id, key, code, topic, typ string
		seq                             int64
	}
	var old []letter
	read, last := 0, s.sweep.no
	err = s.reader.use(ctx, func(c *call) error {
		return c.query("dead_from", []any{s.sweep.no, age.Microseconds(), walkRows}, func(rows *sql.Rows) (bool, error) {
			read++
			var d letter
			var expired bool
			err := rows.Scan(&last, &expired, &d.sink, &d.id, &d.key, &d.code, &d.topic, &d.typ, &d.seq)
			if expired {
				old = append(old, d)
			}
			return false, err
		})
	})
	if err != nil || len(old) == 0 {
		s.sweep.no = last
		return 0, read == walkRows, err
	}
	err = s.writer.use(ctx, func(c *call) error {
		discarded = 0
		return c.write(func() error {
			for _, d := range old {
				n, err := c.exec("expire", d.sink, d.id, age.Microseconds())
				if err != nil {
					return err
				}
				if n == 0 { // a person was faster
					continue
				}
				discarded++
				detail, err := json.Marshal(map[string]any{"was": "dead", "code": d.code, "topic": d.topic, "type": d.typ, "key": d.key, "seq": d.seq})
				if err != nil {
					return err
				}
				if _, err := c.exec("audit_expiry", d.sink, d.id, "dead for longer than retention.dead ("+age.String()+")", string(detail)); err != nil {
					return err
				}
				if err := c.promote(d.sink, d.key); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err == nil {
		s.sweep.no = last
	}
	return discarded, read == walkRows, err
}
