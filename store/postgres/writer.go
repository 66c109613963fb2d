package postgres

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
)

// WriterConfig is what NewWriter and NewSQLWriter need. The zero value writes into the outbox_ tables of the schema public,
// with the limits of package outbox and nothing else.
type WriterConfig struct {
	Schema      string // default public
	TablePrefix string // default outbox_
	// Rules are what a message is held to before the database is asked: topics that need a key, a lower limit on payloads,
	// and a hook that adds headers from the context.
	Rules outbox.Rules
	// IgnoreDuplicates: a message whose id was written before is not written again, and the receipt of the first one is
	// returned. Otherwise that is outbox.ErrDuplicateMessage.
	IgnoreDuplicates bool
	// Serialize: topics whose messages with a key are numbered within it, without gaps (Record.KeySeq). Transactions that
	// write such messages of the same key wait for each other, to their end. A write locks its keys in order; several
	// writes in one transaction should go by keys in order as well, or PostgreSQL ends one of two that wait in a ring.
	Serialize []outbox.Pattern
	// Committed is called after each commit of InTx, not after that of an inner one; relay.Relay.Wake, where a relay runs in this process.
	// It must not wait. Nil: nothing.
	Committed func()
}

// Writer writes messages in a transaction of pgx. It keeps no state between calls, asks for no connection of its own, and
// works in each of pgx's query modes and behind poolers.
//
// A message is written by one statement, and so are many, up to 10,000 or 64 MiB of payloads; beyond that there is a
// statement for each such part, in the same transaction and in order.
type Writer struct{ writing *writing }

var _ outbox.Writer[pgx.Tx] = (*Writer)(nil)

// NewWriter returns a Writer. A configuration that cannot be used is an error of Validate and of every write, so that a
// writer can be a variable.
func NewWriter(c WriterConfig) *Writer { return &Writer{newWriting(c, arrays)} }

// Validate reports what is wrong with the configuration: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid.
func (w *Writer) Validate() error { return w.writing.fault }

// Write writes one message in tx, which stays the caller's to commit. When it returns an error nothing was written.
//
// Errors: those of outbox.Rules.Prepare, before the database is asked; outbox.ErrNoTransaction where tx is nil or has
// ended; outbox.ErrDuplicateMessage, after which PostgreSQL has the transaction rolled back, like after any error of its
// own; store.ErrSchemaMissing and store.ErrSchemaOld. With IgnoreDuplicates and Serialize together a write may meet
// outbox.ErrDuplicateMessage too: where another transaction has just written the id under another key.
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, m outbox.Message) (outbox.Receipt, error) {
	receipts, err := w.WriteAll(ctx, tx, []outbox.Message{m})
	if err != nil {
		return outbox.Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll writes many messages in this order: their sequence numbers grow, and receipts[i] belongs to ms[i]. None is a
// no-op. Errors are those of Write, and one message that is refused refuses all. An id that occurs twice in ms is
// outbox.ErrDuplicateMessage; with IgnoreDuplicates both have one receipt.
func (w *Writer) WriteAll(ctx context.Context, tx pgx.Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	return w.writing.write(ctx, ms, func(ctx context.Context, s statement) ([]outbox.Receipt, error) {
		if isNil(tx) {
			return nil, noTransaction("the transaction is nil")
		}
		rows, err := tx.Query(ctx, s.sql, s.args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, receiptOf)
	})
}

func receiptOf(row pgx.CollectableRow) (outbox.Receipt, error) { return scanReceipt(row) }

// Queue puts the message into a batch that the caller sends, so that it costs no round trip of its own. received is called
// with the receipt when the batch's results are read, before the batch's Close returns; it may be nil. What Write returns
// of the message itself Queue returns; what the database says comes out of the batch's Close. The batch belongs into a
// transaction, or is one by itself where it is sent without.
func (w *Writer) Queue(ctx context.Context, b *pgx.Batch, m outbox.Message, received func(outbox.Receipt)) error {
	if w.writing.fault != nil {
		return w.writing.fault
	}
	if b == nil {
		return noTransaction("the batch is nil")
	}
	p, err := w.writing.prepare(ctx, []outbox.Message{m})
	if err != nil {
		return err
	}
	statements := w.writing.statements(p)
	if w.writing.ignore {
		statements = append(statements, w.writing.lookup(p.ms))
	}
	for i, s := range statements {
		last := i == len(statements)-1
		b.Queue(s.sql, s.args...).Query(func(rows pgx.Rows) error {
			receipts, err := pgx.CollectRows(rows, receiptOf)
			switch {
			case err != nil:
				return w.writing.refused(err, p.ms)
			case last && len(receipts) == 0:
				return notWritten(p.ms)
			case last && received != nil:
				received(receipts[0])
			}
			return nil
		})
	}
	return nil
}

// isNil tells an interface without a transaction: nil itself, or a nil pointer in it.
func isNil(tx any) bool {
	v := reflect.ValueOf(tx)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
