package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// PublishWhen is when a relay may publish what it has read: how much of it a failure of the server could take back.
type PublishWhen string

// When a message may be published. Whatever it is, each message is published in the end exactly if it survived.
const (
	// Committed: as soon as its transaction can be seen. A server that crashes may forget transactions that were committed with
	// synchronous_commit = off, and a standby that is promoted those that had not reached it: what was published of them then
	// has no row any more. The default.
	Committed PublishWhen = "committed"
	// Flushed: once it is on the server's disk.
	Flushed PublishWhen = "flushed"
	// Replicated: once it is on the disks of as many synchronous standbys as synchronous_standby_names asks for.
	Replicated PublishWhen = "replicated"
)

const (
	// durableWait is how long one read waits for what it found. Then it gives nothing and is repeated, so that a relay that stops,
	// or loses its lease, does not wait for a standby that is gone.
	durableWait = 250 * time.Millisecond
	durablePoll = time.Millisecond // the first; each further one takes twice as long
	// durableNudge: a server writes its log down when somebody commits. Where nobody does, the wait does.
	durableNudge = 20 * time.Millisecond
	// durableSay is how often a wait that goes on is logged.
	durableSay = 30 * time.Second
)

// durability waits for what was read. Not safe for concurrent use: reads go one after the other.
type durability struct {
	since time.Time // when what was read began to wait; zero: nothing waits
	said  time.Time
}

// positions is the statement that says how far the server's log is safe; "": that is not asked.
func (p PublishWhen) positions() string {
	switch p {
	case Flushed:
		return "flushed"
	case Replicated:
		return "replicated"
	default:
		return ""
	}
}

// safe is what such a statement says.
type safe struct {
	wal               *int64 // nil: nowhere
	connected, needed int
	token             string
}

func (s *safe) scan(row pgx.Row) error { return row.Scan(&s.wal, &s.connected, &s.needed, &s.token) }

func (s *safe) reached(wal int64) bool { return s.wal != nil && *s.wal >= wal }

// durable reports whether what was found may be published. It waits a while for that; at came with the read.
func (s *Session) durable(ctx context.Context, f *found, at safe) (bool, error) {
	if s.store.publish.positions() == "" || f.empty() {
		return true, nil
	}
	began := time.Now()
	for poll, nudged := durablePoll, false; ; poll = min(2*poll, 50*time.Millisecond) {
		switch {
		case at.token != f.token: // what was found is of another life of the server
			return false, errors.New("the server's incarnation has changed")
		case at.reached(f.wal):
			s.arrived()
			return true, nil
		case time.Since(began) >= durableWait:
			s.waits(at)
			return false, nil
		}
		if err := pause(ctx, poll); err != nil {
			return false, err
		}
		if !nudged && time.Since(began) >= durableNudge {
			nudged = true
			if _, err := s.store.pool.Exec(ctx, `SELECT pg_current_xact_id()`); err != nil {
				return false, err
			}
		}
		if err := at.scan(s.store.pool.QueryRow(ctx, s.sql[s.store.publish.positions()])); err != nil {
			return false, err
		}
	}
}

// waits says in the log that nothing is published, and why.
func (s *Session) waits(at safe) {
	now, d := time.Now(), &s.durability
	if d.since.IsZero() {
		d.since = now
	}
	if now.Sub(d.since) < 4*durableWait || !d.said.IsZero() && now.Sub(d.said) < durableSay {
		return
	}
	d.said = now
	s.store.log.Warn("nothing is published: what was read is not yet where publish_when wants it", "sink", s.sink,
		"publish_when", s.store.publish, "for", now.Sub(d.since).Round(time.Millisecond), "standbys", at.connected, "needed", at.needed)
}

// arrived says in the log that a wait is over which was logged.
func (s *Session) arrived() {
	if !s.durability.said.IsZero() {
		s.store.log.Info("publishing goes on", "sink", s.sink, "after", time.Since(s.durability.since).Round(time.Millisecond))
	}
	s.durability = durability{}
}

func (f *found) empty() bool {
	for _, records := range f.records {
		if len(records) > 0 {
			return false
		}
	}
	return true
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// checkPublish refuses what could never come true.
func (s *Store) checkPublish(ctx context.Context) error {
	switch s.publish {
	case Committed, Flushed:
		return nil
	case Replicated:
	default:
		return &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: opOpen, Detail: "publish_when is " + strconv.Quote(string(s.publish)),
			Hint: "use committed, flushed or replicated",
		}
	}
	refuse := func(detail, hint string) error {
		return &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Op: opOpen, Detail: "publish_when is replicated, and " + detail, Hint: hint}
	}
	var user, names string
	var may bool
	err := s.pool.QueryRow(ctx, s.text("standbys")).Scan(&user, &may, &names)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", opOpen, err)
	case names == "":
		return refuse("this server has no synchronous standby: synchronous_standby_names is empty",
			"set synchronous_standby_names, or database.publish_when to flushed")
	case !may:
		return refuse(user+" may not see how far standbys are", "run: GRANT pg_read_all_stats TO "+pgx.Identifier{user}.Sanitize())
	}
	var at safe
	if err := at.scan(s.pool.QueryRow(ctx, s.text("replicated"))); err != nil {
		return fmt.Errorf("%s: %w", opOpen, err)
	}
	if at.connected < at.needed {
		return refuse(fmt.Sprintf("%d of %d synchronous standbys are connected (synchronous_standby_names is %q)", at.connected, at.needed, names),
			"start the standbys, see pg_stat_replication on this server; or set database.publish_when to flushed")
	}
	return nil
}
