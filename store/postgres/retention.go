package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/failpoint"
)

var _ store.Retainer = (*Store)(nil)

const (
	// retainRows is how many rows of the log one statement looks at, of all partitions together.
	retainRows = 4096
	// retainParts is how many partitions one statement goes through: it reads the cursors of all of them.
	retainParts = 1024
	// frontEvery is how long, at the least, a sweep from the front is due after the last one; and it takes one part in twenty of
	// the time, at the most. It finds rows that were committed late, below where the sweep stands.
	frontEvery = 10 * time.Second
)

// Retain removes what no sink needs any more, and discards dead letters that are old enough: a store.Retainer.
//
// It remembers how far it has swept each partition, so that it does not walk over the rows that it removed and that an old snapshot
// keeps on the disk.
func (s *Store) Retain(ctx context.Context, r store.Retention) (done store.Retained, err error) {
	const op = "retain"
	if r.Published < 0 || r.Dead < 0 {
		return done, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: op, Detail: fmt.Sprintf("retention %v, of dead letters %v", r.Published, r.Dead), Hint: "neither is negative",
		}
	}
	token, known := s.tokenOf(r.Relay)
	if !known {
		return done, nil // its sessions are being loaded: the next call
	}
	s.retaining.Lock()
	defer s.retaining.Unlock()
	w := &s.sweep
	if w.stage == stageIdle {
		w.begin(time.Now(), s.partitions, r)
	}
	began := time.Now()
	step := w.step(r)
	var leads, may bool
	err = s.trip(ctx, "onward retention", func(b *pgx.Batch) {
		id := ""
		if !r.Relay.IsZero() {
			id = r.Relay.String()
		}
		b.Queue(s.text("retain"), id, token)
		if step.marks {
			b.Queue(s.text("retain_mark"), r.Published.Microseconds(), spacing(r.Published).Microseconds())
		}
		b.Queue(s.text(step.name), step.args...)
	}, func(results pgx.BatchResults) error {
		if err := results.QueryRow().Scan(&leads, &may); err != nil {
			return err
		}
		if step.marks {
			if _, err := results.Exec(); err != nil {
				return err
			}
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		return step.scan(rows)
	})
	switch {
	case err != nil:
		w.stage = stageIdle // what it was at comes again with the next round
		return done, fmt.Errorf("%s: %w", op, err)
	case !leads:
		*w = sweep{}
		return done, nil
	case !may:
		w.stage = stageIdle
		return done, nil
	}
	if step.gone > 0 {
		failpoint.Hit("postgres.retain.committed")
	}
	return w.finish(step, time.Since(began), r), nil
}

// spacing is how often is noted how far the log goes: what is removed is at most so much older than it has to be.
func spacing(retention time.Duration) time.Duration {
	return min(max(retention/256, 50*time.Millisecond), 10*time.Minute)
}

// tokenOf is the server's token that the relay's sessions were built under; without a relay any will do.
func (s *Store) tokenOf(relay outbox.ID) (token string, known bool) {
	if relay.IsZero() {
		return "", true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.sessions {
		if session.member.ID != relay {
			continue
		}
		session.mu.Lock()
		if session.void == nil && !session.over {
			token, known = session.token, true
		}
		session.mu.Unlock()
	}
	return token, known
}

// stage is what a sweep is at.
type stage uint8

const (
	stageIdle stage = iota
	stageLog
	stageDead
	stageAttempts
	stagePositions
	stageProgress
)

// leastProgress is how long copies of cursors stay at the least: people look at the rates of a day.
const leastProgress = 24 * time.Hour

// sweep is the memory of retention in this process.
type sweep struct {
	stage    stage
	at       []int64 // up to which each partition was swept
	todo     []int32 // partitions that may have more in this round
	marked   time.Time
	front    time.Time     // when the last round from the front began
	took     time.Duration // how long the statements of that round took
	fromHead bool          // this round is one
	dead     time.Time     // when dead letters were looked at last
	seesDead bool          // this round does
	sink, id string        // where the walk stands in a table by sink and id
	attempt  int
}

// zeroID is before every id.
const zeroID = "00000000-0000-0000-0000-000000000000"

// begin starts a round.
func (w *sweep) begin(now time.Time, partitions int, r store.Retention) {
	if w.at == nil {
		w.at = make([]int64, partitions)
	}
	w.fromHead = w.front.IsZero() || now.Sub(w.front) >= max(r.Published/4, frontEvery, 20*w.took)
	if w.fromHead {
		clear(w.at)
		w.front, w.took = now, 0
	}
	w.seesDead = r.Dead > 0 && (w.dead.IsZero() || now.Sub(w.dead) >= min(max(r.Dead/16, 50*time.Millisecond), frontEvery))
	w.todo = w.todo[:0]
	for part := range w.at {
		w.todo = append(w.todo, int32(part)) //nolint:gosec // at most 16,384
	}
	w.stage = stageLog
}

// step is one statement, and what it answered.
type step struct {
	name  string
	args  []any
	scan  func(pgx.Rows) error
	marks bool

	parts []int32 // of the log
	rows  int     // looked at of each, at most
	swept map[int32]swept
	more  bool // of the other tables
	gone  int
}

// swept is what the statement answered of a partition.
type swept struct {
	rows, gone int
	last       int64
}

func (w *sweep) step(r store.Retention) *step {
	s := &step{}
	if w.stage == stageLog {
		s.parts = w.todo[:min(len(w.todo), retainParts)]
		s.rows = max(1, retainRows/max(1, len(s.parts)))
		at := make([]int64, len(s.parts))
		for i, part := range s.parts {
			at[i] = w.at[part]
		}
		s.swept = make(map[int32]swept, len(s.parts))
		if s.marks = time.Since(w.marked) >= spacing(r.Published); s.marks {
			w.marked = time.Now()
		}
		s.name, s.args, s.scan = "retain_log", []any{s.parts, at, s.rows, r.Published.Microseconds()}, s.scanLog
		return s
	}
	id := w.id
	if id == "" {
		id = zeroID
	}
	switch w.stage {
	case stageDead:
		s.name, s.args = "retain_dead", []any{w.sink, id, r.Dead.Microseconds()}
	case stageAttempts:
		s.name, s.args = "retain_attempts", []any{w.sink, id, w.attempt}
	case stageProgress:
		s.name, s.args = "forget_progress", []any{max(r.Published, leastProgress).Microseconds()}
	default:
		s.name, s.args = "retain_positions", []any{w.sink, id, 0}
	}
	s.scan = func(rows pgx.Rows) error {
		w.sink, w.id, w.attempt = "", "", 0
		for rows.Next() {
			last := []any{&w.sink, &w.id, &w.attempt, nil}
			if w.stage == stageDead {
				last = []any{&w.sink, &w.id, &s.gone}
			}
			if err := rows.Scan(last...); err != nil {
				return err
			}
		}
		s.more = w.id != ""
		return rows.Err()
	}
	return s
}

func (s *step) scanLog(rows pgx.Rows) error {
	var part int32
	var one swept
	_, err := pgx.ForEachRow(rows, []any{&part, &one.rows, &one.last, &one.gone}, func() error {
		s.swept[part] = one
		s.gone += one.gone
		return nil
	})
	return err
}

// finish notes what a step did, and what comes next.
func (w *sweep) finish(s *step, took time.Duration, r store.Retention) (done store.Retained) {
	if w.fromHead {
		w.took += took
	}
	switch w.stage {
	case stageLog:
		done.Messages = s.gone
		var more []int32
		for _, part := range s.parts {
			one := s.swept[part]
			w.at[part] = max(w.at[part], one.last)
			if one.rows == s.rows {
				more = append(more, part)
			}
		}
		w.todo = append(w.todo[len(s.parts):], more...)
		s.more = len(w.todo) > 0
	case stageDead:
		done.Dead = s.gone
		if !s.more {
			w.dead = time.Now()
		}
	case stageIdle, stageAttempts, stagePositions, stageProgress:
	}
	for !s.more {
		w.stage++
		if w.stage > stageProgress {
			w.stage = stageIdle
		}
		s.more = w.stage == stageIdle || w.stage == stageDead && w.seesDead && r.Dead > 0 || w.stage > stageDead && w.fromHead
	}
	done.More = w.stage != stageIdle
	return done
}
