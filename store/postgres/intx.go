package postgres

import (
	"context"
	"database/sql"
	"reflect"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
)

// Beginner is what begins a transaction: a *pgxpool.Pool, a *pgx.Conn, or a pgx.Tx, whose Begin is a savepoint.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTx is Writer.InTx of the zero configuration.
func InTx(ctx context.Context, db Beginner, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return defaultWriter().InTx(ctx, db, fn)
}

var defaultWriter = sync.OnceValue(func() *Writer { return NewWriter(WriterConfig{}) })

// InTx begins a transaction, calls fn in it, writes what was added with outbox.Add and fn's context, and commits. An error
// of fn, of the write or of the commit, and a panic of fn, roll all of it back; fn's error is returned as it is. Where the
// commit's answer is lost, the error does not say whether it happened.
//
// Messages are written once fn has returned, behind what fn wrote with a writer, in the order of outbox.Add. An id that
// was written before is found then: InTx returns outbox.ErrDuplicateMessage. What else a message is refused for outbox.Add
// says.
//
// Within fn's context, a further InTx of the same db is a part of the same transaction: fn gets the same tx, and a
// savepoint, to which an error or a panic goes back, with the messages that were added since. Of another db it is a
// transaction of its own. Such calls go one after the other, as all use of one transaction does; outbox.Add alone may be
// called concurrently. Once the transaction has ended, both are outbox.ErrNoTransaction for who still has the context.
//
// InTx tries once. After a serialization failure or a deadlock (SQLSTATE 40001, 40P01) call it again: nothing that was
// added stays. For another isolation level fn begins with SET TRANSACTION ISOLATION LEVEL.
func (w *Writer) InTx(ctx context.Context, db Beginner, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if w.writing.fault != nil {
		return w.writing.fault
	}
	if isNil(db) {
		return noTransaction("the database is nil")
	}
	outer, _ := ctx.Value(keyOf(db)).(pgx.Tx)
	tx := outer
	if outer == nil {
		var err error
		if tx, err = db.Begin(ctx); err != nil {
			return err
		}
	}
	exec := func(ctx context.Context, sql string) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
	plain := &Writer{w.writing.withoutRules()}
	return w.writing.inTx(context.WithValue(ctx, keyOf(db), tx), outer != nil, transaction{
		exec: exec, commit: tx.Commit, rollback: tx.Rollback,
		fn: func(ctx context.Context) error { return fn(ctx, tx) },
		write: func(ctx context.Context, ms []outbox.Message) error {
			_, err := plain.WriteAll(ctx, tx, ms)
			return err
		},
	})
}

// InSQLTx is SQLWriter.InTx of the zero configuration.
func InSQLTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return defaultSQLWriter().InTx(ctx, db, fn)
}

var defaultSQLWriter = sync.OnceValue(func() *SQLWriter { return NewSQLWriter(WriterConfig{}) })

// InTx is Writer.InTx for database/sql.
func (w *SQLWriter) InTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if w.writing.fault != nil {
		return w.writing.fault
	}
	if db == nil {
		return noTransaction("the database is nil")
	}
	outer, _ := ctx.Value(keyOf(db)).(*sql.Tx)
	tx := outer
	if outer == nil {
		var err error
		if tx, err = db.BeginTx(ctx, nil); err != nil {
			return err
		}
	}
	exec := func(ctx context.Context, sql string) error {
		_, err := tx.ExecContext(ctx, sql)
		return err
	}
	plain := &SQLWriter{w.writing.withoutRules()}
	return w.writing.inTx(context.WithValue(ctx, keyOf(db), tx), outer != nil, transaction{
		exec: exec, commit: func(context.Context) error { return tx.Commit() }, rollback: func(context.Context) error { return tx.Rollback() },
		fn: func(ctx context.Context) error { return fn(ctx, tx) },
		write: func(ctx context.Context, ms []outbox.Message) error {
			_, err := plain.WriteAll(ctx, tx, ms)
			return err
		},
	})
}

// within is the context's key of the transaction that was begun on a database.
type within struct{ db any }

func keyOf(db any) within {
	if !reflect.TypeOf(db).Comparable() {
		return within{new(int)} // a key that is never found
	}
	return within{db}
}

// transaction is what inTx needs of a library.
type transaction struct {
	exec             func(ctx context.Context, sql string) error
	commit, rollback func(ctx context.Context) error
	fn               func(ctx context.Context) error
	write            func(ctx context.Context, ms []outbox.Message) error
}

// inTx runs fn in a transaction that has begun, or in a part of it.
func (w *writing) inTx(ctx context.Context, part bool, t transaction) (err error) {
	if part {
		if err := t.exec(ctx, w.sql["savepoint"]); err != nil {
			return w.refused(err, nil)
		}
		t.commit = func(ctx context.Context) error { return t.exec(ctx, w.sql["release"]) }
		t.rollback = func(ctx context.Context) error {
			if err := t.exec(ctx, w.sql["rollback_to"]); err != nil {
				return err
			}
			return t.exec(ctx, w.sql["release"])
		}
	}
	kept := false
	defer func() { // also when fn panics, or ends its goroutine
		if kept {
			return
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // although the caller has given up
		defer cancel()
		_ = t.rollback(ending) // what it is rolled back for says more
	}()
	inside, added := outbox.Collect(ctx, w.rules)
	defer added.End()
	if err := t.fn(inside); err != nil {
		return err
	}
	if err := t.write(ctx, added.End()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err = t.commit(ctx)
	if kept = err == nil; kept && !part && w.committed != nil {
		w.committed()
	}
	return err
}

// withoutRules writes what was held to the rules before.
func (w *writing) withoutRules() *writing {
	plain := *w
	plain.rules = outbox.Rules{}
	return &plain
}
