// Package outbox is what a service imports to write messages in the transaction that writes its state: the Message, the
// Receipt that finds it again, the Writer contract that each database implements, the limits and the errors.
//
// It needs the standard library alone. Writers live with their database, for example
// github.com/onwardhq/onward/store/postgres.
package outbox

import (
	"context"
	"time"
)

// Message is what a service writes. Topic and Type are required; the payload may be empty. A message is immutable once
// written.
type Message struct {
	ID    ID     // missing: the writer draws a UUIDv7. Unique: it is the deduplication key
	Topic string // where it belongs, for example "orders" or "orders.paid"; at most 255 bytes
	// Key is what must stay in order (an order id, an account), across topics, within one sink. Empty: no order wanted.
	// At most 255 bytes.
	Key         string
	Type        string // what it says, for example "OrderPaid"; at most 500 bytes
	ContentType string // of the payload; missing: application/octet-stream. At most 255 bytes
	Scope       string // tenant or environment; at most 64 bytes

	// CorrelationID, CausationID: the conversation that this message belongs to, and the message that caused it.
	// AggregateType, AggregateID, EventID: the thing it is about, and the stored event that it announces. Each at most
	// 255 bytes; none of them is needed.
	CorrelationID, CausationID, AggregateType, AggregateID, EventID string

	// Payload goes out byte for byte as it is here; at most 1 MiB.
	Payload []byte
	// Headers go out under their own names; names and values together at most 8 KiB. See Rules.Prepare for the names
	// that are refused.
	Headers map[string]string
	// AvailableAt: not before this time, to the microsecond, by the database's clock. Zero or past: at once.
	AvailableAt time.Time
}

// Record is a Message as the database numbered it.
type Record struct {
	Message
	Partition int       // slice of the outbox: a hash of the key, or of the id where the key is empty
	Seq       int64     // the database's sequence number: order within the partition; not commit order
	KeySeq    int64     // gapless number within the key; 0 unless the writer serialises the key
	CreatedAt time.Time // when it was inserted, by the database's clock
}

// Writer writes messages in the caller's transaction T (pgx.Tx, *sql.Tx); the caller begins and ends it. Writers keep no
// state between calls and are safe for concurrent use as far as T is.
//
// Errors are those of this package's Err... values, or the database's own behind an *Error.
type Writer[T any] interface {
	// Write writes one message.
	Write(ctx context.Context, tx T, m Message) (Receipt, error)
	// WriteAll writes many in one statement, in this order: receipts[i] belongs to ms[i]. None: a no-op. One bad message
	// refuses all, before the database is asked.
	WriteAll(ctx context.Context, tx T, ms []Message) ([]Receipt, error)
}
