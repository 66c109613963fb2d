package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"time"
)

// line is one connection, kept out of its pool, with its prepared statements. One caller at a time has it.
type line struct {
	db    *sql.DB
	sql   map[string]string
	wait  time.Duration // how long to wait for other connections' locks
	turn  chan struct{} // holds a token while nobody has the line
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	was   int // the connection's busy timeout in milliseconds, as the pool had it
	ended bool
}

func newLine(db *sql.DB, statements map[string]string, wait time.Duration) *line {
	l := &line{db: db, sql: statements, wait: wait, turn: make(chan struct{}, 1), stmts: map[string]*sql.Stmt{}}
	l.turn <- struct{}{}
	return l
}

var errClosed = errors.New("the store is closed")

// use calls f with the line. What f does is not cancelled half way: an interrupted statement may undo its whole transaction,
// and everything here is bounded and local. So ctx ends waiting alone: for the line, and for locks.
func (l *line) use(ctx context.Context, f func(c *call) error) error {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.connect(ctx); err != nil {
		return err
	}
	err := f(&call{line: l, ctx: context.WithoutCancel(ctx), until: ctx})
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		l.drop()
	}
	return err
}

func (l *line) connect(ctx context.Context) error {
	if l.ended {
		return errClosed
	}
	if l.conn != nil {
		return nil
	}
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	l.conn = conn
	// The waiting is ours: SQLite's own knows no context, and lets others go first for up to a tenth of a second.
	ctx = context.WithoutCancel(ctx)
	if err = conn.QueryRowContext(ctx, `PRAGMA busy_timeout`).Scan(&l.was); err == nil {
		_, err = conn.ExecContext(ctx, `PRAGMA busy_timeout = 0`)
	}
	if err != nil {
		l.drop()
	}
	return err
}

// giveBack ends the line and returns its connection to the pool as it was.
func (l *line) giveBack() {
	<-l.turn
	if l.conn != nil {
		_, err := l.conn.ExecContext(context.Background(), `PRAGMA busy_timeout = `+strconv.Itoa(l.was))
		if err != nil {
			l.drop()
		}
	}
	for _, s := range l.stmts {
		_ = s.Close() // nothing of it is open
	}
	clear(l.stmts)
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.conn, l.ended = nil, true
	l.turn <- struct{}{}
}

// drop ends the connection instead of giving it back: its settings are not those of the caller's pool.
func (l *line) drop() {
	for _, s := range l.stmts {
		_ = s.Close() // its connection ends
	}
	clear(l.stmts)
	if l.conn != nil {
		_ = l.conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = l.conn.Close()
	}
	l.conn = nil
}

// close ends the line after its last caller.
func (l *line) close() {
	<-l.turn
	l.drop()
	l.ended = true
	l.turn <- struct{}{}
}

// call is the line in one caller's hands.
type call struct {
	*line
	ctx   context.Context // without end
	until context.Context // ends waiting for locks
	begun bool
}

// stmt prepares a named statement once.
func (c *call) stmt(name string) (*sql.Stmt, error) {
	if s := c.stmts[name]; s != nil {
		return s, nil
	}
	text, ok := c.sql[name]
	if !ok {
		panic("there is no statement " + name)
	}
	s, err := c.conn.PrepareContext(c.ctx, text)
	if err == nil {
		c.stmts[name] = s
	}
	return s, err
}

// exec runs a named statement and returns how many rows it changed.
func (c *call) exec(name string, args ...any) (changed int64, err error) {
	err = c.again(func() error {
		s, err := c.stmt(name) //nolint:sqlclosecheck // it is kept
		if err != nil {
			return err
		}
		result, err := s.ExecContext(c.ctx, args...)
		if err == nil {
			changed, err = result.RowsAffected()
		}
		return err
	})
	return changed, err
}

// query calls scan for each row of a named statement, until scan says that it has enough.
func (c *call) query(name string, args []any, scan func(rows *sql.Rows) (enough bool, err error)) error {
	return c.again(func() error {
		s, err := c.stmt(name) //nolint:sqlclosecheck // it is kept
		if err != nil {
			return err
		}
		rows, err := s.QueryContext(c.ctx, args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if enough, err := scan(rows); err != nil || enough {
				return err
			}
		}
		return rows.Err()
	})
}

// row scans the only row of a named statement; found is false where there is none.
func (c *call) row(name string, args []any, into ...any) (found bool, err error) {
	err = c.query(name, args, func(rows *sql.Rows) (bool, error) {
		found = true
		return true, rows.Scan(into...)
	})
	return found, err
}

// read runs f in a transaction that sees one moment and holds nobody up.
func (c *call) read(f func() error) error { return c.transaction("begin_read", f) }

// write runs f in a transaction that holds the file's write lock. commits says whether COMMIT was sent: an error then says
// nothing about its fate.
func (c *call) write(f func() error) (err error) { return c.transaction("begin_write", f) }

// errFate marks an error of a COMMIT.
type fateError struct{ error }

func (e fateError) Unwrap() error { return e.error }

func (c *call) transaction(begin string, f func() error) (err error) {
	if _, err := c.exec(begin); err != nil {
		return err
	}
	c.begun = true
	defer func() { c.begun = false }()
	if err := f(); err != nil {
		c.rollback()
		return err
	}
	s, err := c.stmt("commit") //nolint:sqlclosecheck // it is kept
	if err == nil {
		_, err = s.ExecContext(c.ctx)
	}
	if err != nil {
		c.rollback()
		if isFull(err) { // the frame that ends the transaction had no room: what stands before it is nothing
			return err
		}
		return fateError{err}
	}
	return nil
}

// rollback ends the transaction; SQLite may have ended it already, then there is nothing to do.
func (c *call) rollback() {
	if s, err := c.stmt("rollback"); err == nil { //nolint:sqlclosecheck // it is kept
		if _, err = s.ExecContext(c.ctx); err == nil || !errors.Is(err, driver.ErrBadConn) {
			return
		}
	}
	c.drop()
}

// again repeats what another connection's lock keeps from running, up to the line's wait. Within a transaction nothing is
// repeated: SQLite has the lock then, or asks for the transaction to end.
func (c *call) again(f func() error) error {
	err := f()
	if c.begun || !isBusy(err) {
		return err
	}
	deadline := time.Now().Add(c.wait)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 100 * time.Microsecond; isBusy(err) && time.Now().Before(deadline); pause = min(2*pause, 2*time.Millisecond) {
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-c.until.Done():
			return c.until.Err()
		}
		err = f()
	}
	return err
}
