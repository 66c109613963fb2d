// Package outboxtest is for the tests of services that write messages: a Recorder where there is no database, and
// RequireWritten where there is one. It needs the standard library alone.
package outboxtest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Partitions is into how many slices a Recorder sorts its messages, as many as an outbox has by default.
const Partitions = 64

// RecorderConfig is what the service's own writer is configured with. The zero value has the limits of package outbox.
type RecorderConfig struct {
	Rules outbox.Rules
	// IgnoreDuplicates: a message whose id was written before is not written again, and has the receipt of the first one.
	IgnoreDuplicates bool
}

// Recorder is a writer that keeps what was written, in order. T is the transaction of the writer that it stands for: a
// service that takes an outbox.Writer[pgx.Tx] takes a *Recorder[pgx.Tx]. The transaction itself is not looked at, and may
// be nil: what is rolled back stays recorded. Messages are refused for what the writers of stores refuse them for, before
// and by the database: limits, missing keys, reserved headers, duplicates. It is safe for concurrent use.
type Recorder[T any] struct {
	config RecorderConfig
	fault  error

	mu      sync.Mutex
	records []outbox.Record
	at      map[outbox.ID]int // index into records
	seq     int64
	fails   error
}

var _ outbox.Writer[any] = (*Recorder[any])(nil)

// NewRecorder returns a Recorder. A configuration that cannot be used is an error of every write, as it is of a store's
// writer.
func NewRecorder[T any](c RecorderConfig) *Recorder[T] {
	return &Recorder[T]{config: c, fault: c.Rules.Validate(), at: map[outbox.ID]int{}}
}

// Write records one message.
func (r *Recorder[T]) Write(ctx context.Context, tx T, m outbox.Message) (outbox.Receipt, error) {
	receipts, err := r.WriteAll(ctx, tx, []outbox.Message{m})
	if err != nil {
		return outbox.Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll records many messages, or none of them.
func (r *Recorder[T]) WriteAll(ctx context.Context, _ T, ms []outbox.Message) ([]outbox.Receipt, error) {
	if r.fault != nil || len(ms) == 0 {
		return nil, r.fault
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	prepared := make([]outbox.Message, len(ms))
	for i := range ms {
		m, err := r.config.Rules.Prepare(ctx, ms[i])
		if err != nil {
			return nil, err
		}
		m.Payload, m.Headers = slices.Clone(m.Payload), maps.Clone(m.Headers)
		prepared[i] = m
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return nil, r.fails
	}
	if err := r.checkDuplicates(prepared); err != nil {
		return nil, err
	}
	receipts := make([]outbox.Receipt, len(prepared))
	for i, m := range prepared {
		receipts[i] = r.keep(m)
	}
	return receipts, nil
}

func (r *Recorder[T]) checkDuplicates(ms []outbox.Message) error {
	if r.config.IgnoreDuplicates {
		return nil
	}
	seen := map[outbox.ID]bool{}
	for _, m := range ms {
		_, before := r.at[m.ID]
		if before || seen[m.ID] {
			return &outbox.Error{
				Code: outbox.ErrDuplicateMessage.Code, Op: "write message " + m.ID.String(), Detail: outbox.ErrDuplicateMessage.Detail,
				Hint: "it is there already; set IgnoreDuplicates where that is expected",
			}
		}
		seen[m.ID] = true
	}
	return nil
}

// keep returns the receipt of the message, or of the first one with its id. The caller has the mutex.
func (r *Recorder[T]) keep(m outbox.Message) outbox.Receipt {
	at, before := r.at[m.ID]
	if !before {
		at = len(r.records)
		r.seq++
		r.at[m.ID] = at
		r.records = append(r.records, outbox.Record{
			Message: m, Partition: outbox.PartitionOf(m.Key, m.ID, Partitions), Seq: r.seq, CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
		})
	}
	record := &r.records[at]
	return outbox.Receipt{ID: record.ID, Partition: record.Partition, Seq: record.Seq}
}

// Context returns a context for code that calls outbox.Add: its messages are recorded at once, without waiting for a
// commit.
func (r *Recorder[T]) Context(ctx context.Context) context.Context {
	return outbox.WithAdder(ctx, func(ctx context.Context, m outbox.Message) error {
		var none T
		_, err := r.Write(ctx, none, m)
		return err
	})
}

// Records returns what was written so far, in order.
func (r *Recorder[T]) Records() []outbox.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	records := slices.Clone(r.records)
	for i := range records {
		records[i].Payload, records[i].Headers = slices.Clone(records[i].Payload), maps.Clone(records[i].Headers)
	}
	return records
}

// Written is Records, for RequireWritten.
func (r *Recorder[T]) Written(context.Context, T) ([]outbox.Record, error) { return r.Records(), nil }

// Fail has writes that would be taken fail with err from now on, as a database does; nil ends it.
func (r *Recorder[T]) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = err
}

// Reset forgets what was written, ids included. Sequence numbers go on.
func (r *Recorder[T]) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = nil
	clear(r.at)
}
