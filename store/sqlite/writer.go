package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// WriterConfig is what NewSQLWriter needs. The zero value writes into the outbox_ tables, with the limits of package
// outbox and nothing else.
type WriterConfig struct {
	TablePrefix string // default outbox_
	// Rules are what a message is held to before the database is asked: topics that need a key, a lower limit on payloads,
	// and a hook that adds headers from the context.
	Rules outbox.Rules
	// IgnoreDuplicates: a message whose id was written before is not written again, and the receipt of the first one is
	// returned. Otherwise that is outbox.ErrDuplicateMessage.
	IgnoreDuplicates bool
	// Serialize: topics whose messages with a key are numbered within it, without gaps (Record.KeySeq). Nobody waits for
	// that: the transaction holds the file's write lock anyway.
	Serialize []outbox.Pattern
	// Committed is called after each commit of InTx, not after that of an inner one; relay.Relay.Wake, where a relay runs in this
	// process.
	Committed func()
}

// SQLWriter writes messages in a transaction of database/sql, by any driver for SQLite 3.37 or later. It keeps no state
// between calls.
//
// A transaction should begin with the write lock (BEGIN IMMEDIATE; _txlock=immediate of most drivers, which OpenDB sets):
// one that reads first and writes then is refused by SQLite where another one has written in between.
type SQLWriter struct {
	config WriterConfig
	sql    map[string]string
	fault  error // of the configuration
}

var _ outbox.Writer[*sql.Tx] = (*SQLWriter)(nil)

// NewSQLWriter returns an SQLWriter. A configuration that cannot be used is an error of Validate and of every write, so
// that a writer can be a variable.
func NewSQLWriter(c WriterConfig) *SQLWriter {
	n, err := newNames(c.TablePrefix)
	faults := []error{err, c.Rules.Validate()}
	for _, p := range c.Serialize {
		faults = append(faults, p.Validate())
	}
	w := &SQLWriter{config: c, fault: errors.Join(faults...)}
	if w.fault == nil {
		w.sql = n.statements("write")
	}
	return w
}

// Validate reports what is wrong with the configuration: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid.
func (w *SQLWriter) Validate() error { return w.fault }

// Write writes one message in tx, which stays the caller's to commit. When it returns an error nothing was written, and
// the transaction can go on, unless SQLite or the context has ended it.
//
// Errors: those of outbox.Rules.Prepare, before the database is asked; outbox.ErrNoTransaction where tx is nil or has
// ended; outbox.ErrDuplicateMessage; ErrBusy, ErrFull, ErrUnavailable; store.ErrSchemaMissing and store.ErrSchemaOld.
func (w *SQLWriter) Write(ctx context.Context, tx *sql.Tx, m outbox.Message) (outbox.Receipt, error) {
	receipts, err := w.WriteAll(ctx, tx, []outbox.Message{m})
	if err != nil {
		return outbox.Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll writes many messages in this order: their sequence numbers grow, and receipts[i] belongs to ms[i]. None is a
// no-op. Errors are those of Write, and one message that is refused refuses all. An id that occurs twice in ms is
// outbox.ErrDuplicateMessage; with IgnoreDuplicates both have one receipt.
func (w *SQLWriter) WriteAll(ctx context.Context, tx *sql.Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	if w.fault != nil || len(ms) == 0 {
		return nil, w.fault
	}
	if err := ctx.Err(); err != nil {
		return nil, failed("write messages", err)
	}
	rows := make([]row, len(ms))
	for i := range ms {
		var err error
		if rows[i], err = w.prepare(ctx, ms[i]); err != nil {
			return nil, err
		}
	}
	if tx == nil {
		return nil, noTransaction("the transaction is nil", nil)
	}
	batch := &batch{SQLWriter: w, tx: tx, stmts: map[string]*sql.Stmt{}, many: len(ms) > 1}
	receipts, err := batch.write(ctx, rows)
	if err != nil {
		return nil, w.refused(err, rows)
	}
	return receipts, nil
}

// row is a message as the statements take it.
type row struct {
	outbox.Message
	serialize bool
	args      []any // of insert, but for the last one
}

func (w *SQLWriter) prepare(ctx context.Context, m outbox.Message) (r row, err error) {
	if m, err = w.config.Rules.Prepare(ctx, m); err != nil {
		return r, err
	}
	available, err := availableAt(m.AvailableAt)
	if err != nil {
		return r, err
	}
	headers := []byte("{}")
	if len(m.Headers) > 0 {
		if headers, err = json.Marshal(m.Headers); err != nil {
			return r, err
		}
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	r = row{Message: m, args: []any{
		m.ID.String(), m.Topic, m.Key, m.Type, payload, m.ContentType, string(headers), m.Scope, m.CorrelationID, m.CausationID,
		m.AggregateType, m.AggregateID, m.EventID, available,
	}}
	r.serialize = m.Key != "" && slices.ContainsFunc(w.config.Serialize, func(p outbox.Pattern) bool { return p.Match(m.Topic) })
	return r, nil
}

// availableAt is the time in microseconds, rounded up, because "not before" is what it says; nil: at once. Times before the
// year 1 are past anyway.
func availableAt(t time.Time) (any, error) {
	if t.IsZero() {
		return nil, nil
	}
	t = t.UTC().Add(time.Microsecond - 1)
	if t.Year() < 1 {
		t = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if t.Year() > 9999 {
		return nil, &outbox.Error{
			Code: outbox.ErrFieldInvalid.Code, Op: "write message", Detail: fmt.Sprintf("AvailableAt is in the year %d", t.Year()),
			Hint: "choose a time before the year 10000",
		}
	}
	return t.Truncate(time.Microsecond).UnixMicro(), nil
}

// batch is one call of WriteAll.
type batch struct {
	*SQLWriter
	tx    *sql.Tx
	many  bool // statements are prepared, and undone together
	stmts map[string]*sql.Stmt
}

func (b *batch) write(ctx context.Context, rows []row) (receipts []outbox.Receipt, err error) {
	if !b.many && !rows[0].serialize {
		return b.writeAll(ctx, rows)
	}
	if _, err := b.tx.ExecContext(ctx, b.sql["savepoint"]); err != nil {
		return nil, err
	}
	receipts, err = b.writeAll(ctx, rows)
	for _, s := range b.stmts {
		_ = s.Close() // nothing of it is open
	}
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		if _, e := b.tx.ExecContext(ctx, b.sql["undo"]); e != nil {
			return nil, err // SQLite has ended the transaction
		}
	}
	if _, e := b.tx.ExecContext(ctx, b.sql["release"]); err == nil {
		err = e
	}
	return receipts, err
}

func (b *batch) writeAll(ctx context.Context, rows []row) ([]outbox.Receipt, error) {
	receipts := make([]outbox.Receipt, len(rows))
	for i := range rows {
		seq, err := b.writeOne(ctx, &rows[i])
		if err != nil {
			return nil, err
		}
		receipts[i] = outbox.Receipt{ID: rows[i].ID, Seq: seq}
	}
	return receipts, nil
}

func (b *batch) writeOne(ctx context.Context, r *row) (seq int64, err error) {
	number := int64(0)
	if r.serialize {
		if number, err = b.one(ctx, "number", r.Key); err != nil {
			return 0, err
		}
	}
	insert := "insert"
	if b.config.IgnoreDuplicates {
		insert = "insert_ignoring"
	}
	seq, err = b.one(ctx, insert, append(r.args, number)...)
	switch isDuplicate := err != nil && b.isDuplicate(err); {
	case isDuplicate && !b.config.IgnoreDuplicates:
		return 0, duplicate(r.ID, err)
	case err == nil || !isDuplicate && !errors.Is(err, sql.ErrNoRows):
		return seq, err
	}
	if r.serialize {
		if _, err := b.tx.ExecContext(ctx, b.sql["unnumber"], r.Key); err != nil {
			return 0, err
		}
	}
	id := r.ID.String()
	return b.one(ctx, "written", id, id, id)
}

// one runs a statement that answers with one number.
func (b *batch) one(ctx context.Context, name string, args ...any) (n int64, err error) {
	if !b.many {
		err = b.tx.QueryRowContext(ctx, b.sql[name], args...).Scan(&n)
		return n, err
	}
	s := b.stmts[name]
	if s == nil {
		if s, err = b.tx.PrepareContext(ctx, b.sql[name]); err != nil {
			return 0, err
		}
		b.stmts[name] = s
	}
	err = s.QueryRowContext(ctx, args...).Scan(&n)
	return n, err
}

// isDuplicate: SQLite's own text, which every driver passes on, and that of the trigger, which is the same.
func (w *SQLWriter) isDuplicate(err error) bool {
	n, _ := newNames(w.config.TablePrefix)
	return strings.Contains(err.Error(), "UNIQUE constraint failed: "+n.prefix+"messages.id")
}

// refused says what an error of the database means for the write.
func (w *SQLWriter) refused(err error, rows []row) error {
	op := "write messages"
	if len(rows) == 1 {
		op = fmt.Sprintf("write message (topic %.60q, type %.60q)", rows[0].Topic, rows[0].Type)
	}
	if errors.Is(err, sql.ErrTxDone) {
		return noTransaction("the transaction has ended", err)
	}
	return failed(op, err)
}

func duplicate(id outbox.ID, cause error) error {
	return &outbox.Error{
		Code: outbox.ErrDuplicateMessage.Code, Op: "write message " + id.String(), Detail: outbox.ErrDuplicateMessage.Detail, Err: cause,
		Hint: "it is there already; set IgnoreDuplicates where that is expected",
	}
}

func noTransaction(detail string, cause error) error {
	return &outbox.Error{
		Code: outbox.ErrNoTransaction.Code, Op: "write message", Detail: detail, Err: cause,
		Hint: "begin a transaction and write the state and the message in it",
	}
}
