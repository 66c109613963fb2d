package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

// Session is one relay on one sink: a store.Session. What it remembers is worth what the database said last: after any
// doubt about that it answers store.ErrReload, and goes on from the cursors in the database at the next Renew.
type Session struct {
	store  *Store
	member *member
	sink   string
	takes  string // what the sink takes, and leaves: regular expressions; empty: everything, and nothing
	leaves string
	sql    map[string]string
	hints  chan struct{} // one at most
	ended  chan struct{} // closed when it is over

	reading    sync.Mutex // reads go one after the other
	durability durability // of what is read
	settling   sync.Mutex // held by whatever replaces the cursor row, or takes it as the base of a new memory
	mu         sync.Mutex // guards what follows
	ledger     *ledger
	no         int64 // of the cursor row
	token      string
	floor      int64
	lineage    string
	mark       int64 // the sequence's value at the first read; 0: there was none
	count      int64 // published, in all
	written    position
	settled    time.Time
	void       error     // ErrReload, until reloaded
	dropped    bool      // the caller knows, and has dropped what it held
	over       bool      // fenced for good, or closed
	turned     time.Time // when Renew was last called
	checked    time.Time
	foreign    time.Time // when the earliest foreign lease ends
	quiet      bool      // the last Heads found neither pauses nor anything due
}

var _ store.Session = (*Session)(nil)

// defaultPage and defaultPageBytes bound one read statement where store.Relay does not.
const (
	defaultPage      = 2048
	defaultPageBytes = 16 << 20
)

var sessionNames = []string{
	"read_shares", "read_window", "read_page", "draw", "settle", "settle_verdicts", "lock_lines",
	"promote", "heads", "line_up", "followers", "heartbeat", "look", "claim", "reload", "expired", "mark", "sweep_pauses",
	"flushed", "replicated", "renumber",
}

func newSession(s *Store, m *member, sink store.Sink) *Session {
	if m.Page == 0 {
		m.Page = defaultPage
	}
	if m.PageBytes == 0 {
		m.PageBytes = defaultPageBytes
	}
	c := &Session{
		store: s, member: m, sink: sink.Name, takes: expression(sink.Topics), leaves: expression(sink.Exclude), sql: make(map[string]string),
		hints: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	for _, name := range sessionNames {
		c.sql[name] = sessionStatement(s.names, name, m.Page)
	}
	return c
}

// usable returns why the session cannot be used, or nil.
func (s *Session) usable(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return errFenced(op)
	case s.void != nil:
		return errVoid(op, store.ErrReload.Detail, s.void)
	}
	return nil
}

// fail makes the session void: nothing of its memory is used again.
func (s *Session) fail(op, detail string, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errFenced(op)
	}
	return s.spoil(errVoid(op, detail, cause))
}

// spoil makes the session void. The lock is held.
func (s *Session) spoil(err error) error {
	s.void, s.dropped = err, false
	return err
}

// Reset makes the next renewal load the session again.
func (s *Session) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.void, s.dropped = errVoid("reset", store.ErrReload.Detail, s.void), true
}

// end fences the session for good. last: its relay has no other one.
func (s *Session) end() (last bool) {
	s.mu.Lock()
	if !s.over {
		s.over = true
		close(s.ended)
	}
	s.mu.Unlock()
	s.store.listener.remove(s)
	s.store.mu.Lock()
	known := s.store.sessions[s]
	delete(s.store.sessions, s)
	s.store.mu.Unlock()
	return known && s.store.release(s.member)
}

// errNoRow: the relay has no row in outbox_cursors any more.
var errNoRow = errors.New("the relay's cursor is gone")

// reload builds the session's memory from the database: one statement says what is owned and from where.
func (s *Session) reload(ctx context.Context) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	for range 3 {
		l, err := s.load(ctx)
		if err != nil {
			return err
		}
		if l != nil {
			return nil
		}
		if err := s.store.incarnate(ctx, s.member.Name); err != nil {
			return err
		}
	}
	return errors.New("the incarnation's token does not stay")
}

// load returns nil where the server has no token, or one under which nobody has looked whose numbers the rows have.
func (s *Session) load(ctx context.Context) (*ledger, error) {
	var (
		l        *ledger
		mine     loaded
		base     position
		holdings []holding
	)
	err := s.fetch(ctx, func(rows pgx.Rows) error {
		var last position // a snapshot comes with the first partition that has it
		for rows.Next() {
			var r reloaded
			if err := rows.Scan(r.columns()...); err != nil {
				return err
			}
			switch {
			case l == nil:
				base = position{snapshot: *r.snapshot, late: *r.late, lateSeq: *r.lateSeq}
				l, mine = newLedger(base), r.loaded
				continue
			case r.member:
				r.cursor.position = base
			case r.snapshot != nil:
				last = position{snapshot: *r.snapshot, late: *r.late, lateSeq: *r.lateSeq}
				fallthrough
			default:
				r.cursor.position = last
			}
			holdings = append(holdings, r.holding)
		}
		return rows.Err()
	})
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, errNoRow
	case mine.token == nil, !s.store.vouches(*mine.token):
		return nil, nil
	}
	l.add(holdings)
	s.store.sayLineage(mine.lineage)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger, s.no, s.token, s.floor, s.lineage, s.count, s.void, s.dropped = l, mine.no, *mine.token, mine.floor, mine.lineage, mine.count, nil, false
	s.written, s.settled = base, time.Now()
	return l, nil
}

// fetch asks what is owned and from where. A session that is void gives its cursor row the next number first: a settle or a
// give-back whose answer was lost may be on its way still, and must not change what is loaded now.
func (s *Session) fetch(ctx context.Context, read func(pgx.Rows) error) error {
	args := []any{s.sink, s.member.ID.String()}
	s.mu.Lock()
	void := s.void != nil
	s.mu.Unlock()
	if !void {
		return s.trip(ctx, false, "reload", args, read)
	}
	return s.store.trip(ctx, s.member.application, func(b *pgx.Batch) {
		b.Queue(s.sql["renumber"], args...)
		b.Queue(s.sql["reload"], args...)
	}, func(r pgx.BatchResults) error {
		if _, err := r.Exec(); err != nil {
			return err
		}
		return nextRows(r, read)
	})
}

// loaded is what the cursor row says of the relay.
type loaded struct {
	no, count, floor int64
	token            *string
	lineage          string
}

// reloaded is a row of a reload: the relay's own, or that of a partition.
type reloaded struct {
	loaded
	holding
	snapshot, late *string
	lateSeq        *int64
}

func (r *reloaded) columns() []any {
	var n int64
	return []any{&n, &r.no, &r.count, &r.token, &r.floor, &r.lineage, &r.part, &r.epoch, &r.cursor.seq, &r.member, &r.snapshot, &r.late, &r.lateSeq}
}

// trip runs one statement of the session in a transaction of its own.
func (s *Session) trip(ctx context.Context, locks bool, name string, args []any, read func(pgx.Rows) error) error {
	as := ""
	if locks {
		as = s.member.application
	}
	return s.store.trip(ctx, as, func(b *pgx.Batch) { b.Queue(s.sql[name], args...) }, func(r pgx.BatchResults) error {
		return nextRows(r, read)
	})
}

// ask is trip for a statement that only reads.
func (s *Session) ask(ctx context.Context, name string, args []any, read func(pgx.Rows) error) error {
	return s.store.ask(ctx, func(b *pgx.Batch) { b.Queue(s.sql[name], args...) }, func(r pgx.BatchResults) error {
		return nextRows(r, read)
	})
}

// nextRows reads the rows of a statement.
func nextRows(r pgx.BatchResults, read func(pgx.Rows) error) error {
	rows, err := r.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := read(rows); err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// one reads the only row of an answer.
func one(dest ...any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		if !rows.Next() {
			return errors.Join(rows.Err(), pgx.ErrNoRows)
		}
		return rows.Scan(dest...)
	}
}

// GiveBack lets others have the partitions, from where they are settled: a settle like any other. Errors as Settle.
func (s *Session) GiveBack(ctx context.Context, partitions []int) error {
	_, err := s.settle(ctx, "give back", store.Settlement{}, partitions)
	return err
}

// Close settles what Settle was told, gives everything back and leaves. Where the database does not answer, others take
// over when the lease ends.
func (s *Session) Close(ctx context.Context) error {
	const op = "leave"
	if err := s.usable(op); errors.Is(err, store.ErrFenced) {
		return err
	}
	defer s.store.listener.left()
	defer s.end()
	if err := s.usable(op); err != nil { // void: the take-over gives back from the durable cursors
		switch err := s.reload(ctx); {
		case errors.Is(err, errNoRow): // it has happened already
			return errFenced(op)
		case err != nil:
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	s.mu.Lock()
	owned := make([]int, 0, len(s.ledger.slots))
	for part := range s.ledger.slots {
		owned = append(owned, part)
	}
	s.mu.Unlock()
	slices.Sort(owned)
	_, settled := s.settle(ctx, op, store.Settlement{}, owned)
	if s.end() {
		if err := s.store.takeOver(ctx, s.member.ID.String(), takeOwn); err != nil {
			return errors.Join(settled, fmt.Errorf("%s: %w", op, err))
		}
		return nil
	}
	if settled == nil { // the relay serves other sinks: what it left here must not wait for their end
		if err := s.quit(ctx); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return settled
}

// quit takes the sink out of the relay's registration.
func (s *Session) quit(ctx context.Context) error {
	return s.store.trip(ctx, s.member.application, func(b *pgx.Batch) {
		b.Queue(s.store.text("quit"), s.member.ID.String(), s.sink)
	}, func(r pgx.BatchResults) error {
		_, err := r.Exec()
		return err
	})
}
