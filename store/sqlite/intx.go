package sqlite

import (
	"context"
	"database/sql"
	"sync"

	"github.com/onwardhq/onward/outbox"
)

// InTx is SQLWriter.InTx of the zero configuration.
func InTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return defaultWriter().InTx(ctx, db, fn)
}

var defaultWriter = sync.OnceValue(func() *SQLWriter { return NewSQLWriter(WriterConfig{}) })

// InTx begins a transaction, calls fn in it, writes what was added with outbox.Add and fn's context, and commits. An error
// of fn, of the write or of the commit, and a panic of fn, roll all of it back; fn's error is returned as it is.
//
// Messages are written once fn has returned, behind what fn wrote with a writer, in the order of outbox.Add. An id that
// was written before is found then: InTx returns outbox.ErrDuplicateMessage. What else a message is refused for outbox.Add
// says.
//
// Within fn's context, a further InTx of the same db is a part of the same transaction: fn gets the same tx, and a
// savepoint, to which an error or a panic goes back, with the messages that were added since. Of another db it is a
// transaction of its own: of another *sql.DB of the same file one that waits for the write lock which the outer one has, and is
// refused with ErrBusy. Such calls go one after the other, as all use of one transaction does; outbox.Add alone may be called
// concurrently. Once the transaction has ended, both are outbox.ErrNoTransaction for who still has the context.
//
// InTx tries once. Where the write lock was not free within the connection's busy timeout it is ErrBusy, and nothing that was
// added stays: call it again.
func (w *SQLWriter) InTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if w.fault != nil {
		return w.fault
	}
	if db == nil {
		return noTransaction("the database is nil", nil)
	}
	if outer, ok := ctx.Value(within{db}).(*sql.Tx); ok {
		return w.inPart(ctx, outer, fn)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return failed("begin transaction", err)
	}
	defer func() { _ = tx.Rollback() }() // no-op after Commit; also when fn panics, or ends its goroutine
	if err := w.collect(context.WithValue(ctx, within{db}, tx), tx, fn); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return failed("commit", err)
	}
	if w.config.Committed != nil {
		w.config.Committed()
	}
	return nil
}

// within is the context's key of the transaction that was begun on a database.
type within struct{ db *sql.DB }

// inPart runs fn in a savepoint of a transaction.
func (w *SQLWriter) inPart(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if _, err := tx.ExecContext(ctx, w.sql["begin_part"]); err != nil {
		return w.refused(err, nil)
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		ctx := context.WithoutCancel(ctx)
		if _, err := tx.ExecContext(ctx, w.sql["undo_part"]); err == nil { // else SQLite has ended the transaction
			_, _ = tx.ExecContext(ctx, w.sql["end_part"])
		}
	}()
	if err := w.collect(ctx, tx, fn); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, w.sql["end_part"]); err != nil {
		return w.refused(err, nil)
	}
	kept = true
	return nil
}

// collect runs fn, and writes what was added.
func (w *SQLWriter) collect(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) error {
	inside, added := outbox.Collect(ctx, w.config.Rules)
	defer added.End()
	if err := fn(inside, tx); err != nil {
		return err
	}
	plain := *w
	plain.config.Rules = outbox.Rules{} // what was added was held to the rules then
	if _, err := plain.WriteAll(ctx, tx, added.End()); err != nil {
		return err
	}
	return ctx.Err()
}
