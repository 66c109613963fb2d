package postgres

import (
	"context"
	"database/sql"

	"github.com/onwardhq/onward/outbox"
)

// SQLWriter writes messages in a transaction of database/sql, by any driver for PostgreSQL: its arguments are texts,
// numbers and bytes. Libraries above database/sql have a *sql.Tx somewhere inside (docs/postgres-writers.md). Otherwise it
// is like Writer.
type SQLWriter struct{ writing *writing }

var _ outbox.Writer[*sql.Tx] = (*SQLWriter)(nil)

// NewSQLWriter returns an SQLWriter. A configuration that cannot be used is an error of Validate and of every write.
func NewSQLWriter(c WriterConfig) *SQLWriter { return &SQLWriter{newWriting(c, jsonText)} }

// Validate reports what is wrong with the configuration: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid.
func (w *SQLWriter) Validate() error { return w.writing.fault }

// Write is Writer.Write.
func (w *SQLWriter) Write(ctx context.Context, tx *sql.Tx, m outbox.Message) (outbox.Receipt, error) {
	receipts, err := w.WriteAll(ctx, tx, []outbox.Message{m})
	if err != nil {
		return outbox.Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll is Writer.WriteAll.
func (w *SQLWriter) WriteAll(ctx context.Context, tx *sql.Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	return w.writing.write(ctx, ms, func(ctx context.Context, s statement) (receipts []outbox.Receipt, err error) {
		if tx == nil {
			return nil, noTransaction("the transaction is nil")
		}
		rows, err := tx.QueryContext(ctx, s.sql, s.args...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = rows.Close() }() // a second time after the last row, which does nothing
		for rows.Next() {
			r, err := scanReceipt(rows)
			if err != nil {
				return nil, err
			}
			receipts = append(receipts, r)
		}
		return receipts, rows.Err()
	})
}
