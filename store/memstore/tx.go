package memstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Tx is a transaction. Messages get their sequence numbers when they are written, and are visible when it is committed.
// Safe for concurrent use, as every part of the database is; but one goroutine should own it.
type Tx struct {
	db     *DB
	id     uint64 // 0: nothing was written yet
	rows   []*row
	done   bool
	failed bool // a statement was refused: it can only be rolled back
	born   uint64
}

var (
	errFinished = errors.New("the transaction has ended")
	errAborted  = errors.New("the transaction is aborted: a statement of it was refused")

	errCommitLost = errors.New("the answer of the commit was lost")
)

// Begin starts a transaction.
func (db *DB) Begin() *Tx {
	db.mu.Lock()
	defer db.mu.Unlock()
	return &Tx{db: db, born: db.incarnation}
}

// Commit makes what was written visible, all at once. A transaction in which a write was refused with
// outbox.ErrDuplicateMessage is rolled back instead, and the error says so.
func (tx *Tx) Commit() error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if err := tx.usable(); err != nil {
		if errors.Is(err, errAborted) {
			tx.rollback()
		}
		return err
	}
	fault := tx.db.faulty(Call{Op: OpCommit})
	if fault.Err != nil && !fault.Lost {
		tx.rollback()
		return fault.Err
	}
	tx.done = true
	delete(tx.db.state.open, tx.id)
	for _, r := range tx.rows {
		tx.db.state.publish(r)
	}
	if len(tx.rows) > 0 {
		tx.db.wake()
	}
	if fault.Lost {
		return cmp.Or(fault.Err, errCommitLost)
	}
	return nil
}

// Rollback ends the transaction; what was written never was. On a transaction that has ended it does nothing.
func (tx *Tx) Rollback() error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if !tx.done && tx.born == tx.db.incarnation {
		tx.rollback()
	}
	tx.done = true
	return nil
}

func (tx *Tx) rollback() {
	tx.done = true
	if tx.id == 0 {
		return
	}
	delete(tx.db.state.open, tx.id)
	tx.db.state.aborted[tx.id] = struct{}{}
	for _, r := range tx.rows {
		delete(tx.db.state.ids, r.ID)
	}
}

func (tx *Tx) usable() error {
	switch {
	case tx.done || tx.born != tx.db.incarnation:
		return errFinished
	case tx.failed:
		return errAborted
	}
	return nil
}

// publish makes a committed row visible in the log and to every sink.
func (s *state) publish(r *row) {
	log := queue(s.logs[r.Partition])
	log.add(r)
	s.logs[r.Partition] = log
	for _, k := range s.sinks {
		k.parts[r.Partition].unread.add(r)
	}
}

// WriterConfig says what a writer does. The zero value has the limits of package outbox and nothing else.
type WriterConfig struct {
	outbox.Rules
	// IgnoreDuplicates: a message whose id was written before is left as it is, and its receipt returned.
	IgnoreDuplicates bool
}

// Writer writes messages in a Tx: an outbox.Writer[*Tx]. A message whose id stands in a transaction that is still open
// counts as written before: nobody waits for the other one to end.
type Writer struct{ config WriterConfig }

var _ outbox.Writer[*Tx] = (*Writer)(nil)

// NewWriter makes a writer. A bad configuration is the error of every Write.
func NewWriter(c WriterConfig) *Writer { return &Writer{config: c} }

// Write writes one message.
func (w *Writer) Write(ctx context.Context, tx *Tx, m outbox.Message) (outbox.Receipt, error) {
	receipts, err := w.WriteAll(ctx, tx, []outbox.Message{m})
	if err != nil {
		return outbox.Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll writes many, in this order.
func (w *Writer) WriteAll(ctx context.Context, tx *Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	if err := w.config.Validate(); err != nil {
		return nil, err
	}
	prepared := make([]outbox.Message, len(ms))
	for i, m := range ms {
		var err error
		if prepared[i], err = w.config.Prepare(ctx, m); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, noTransaction(err)
	}
	if tx == nil {
		return nil, noTransaction(nil)
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if err := tx.usable(); err != nil {
		return nil, noTransaction(err)
	}
	return w.insert(tx, prepared)
}

func (w *Writer) insert(tx *Tx, ms []outbox.Message) ([]outbox.Receipt, error) {
	s := &tx.db.state
	if tx.id == 0 {
		s.tx++
		tx.id = s.tx
		s.open[tx.id] = struct{}{}
	}
	receipts := make([]outbox.Receipt, len(ms))
	now := tx.db.now().UTC()
	for i, m := range ms {
		r := s.known(m.ID)
		if r != nil && !w.config.IgnoreDuplicates {
			tx.failed = true
			return nil, &outbox.Error{
				Code: outbox.ErrDuplicateMessage.Code, Op: "write message",
				Detail: "a message with the id " + m.ID.String() + " was written before",
				Hint:   "set IgnoreDuplicates if writing it again is meant to do nothing",
			}
		}
		if r == nil {
			r = tx.add(m, now)
		}
		receipts[i] = outbox.Receipt{ID: m.ID, Partition: r.Partition, Seq: r.Seq, Tx: r.tx}
	}
	return receipts, nil
}

func (tx *Tx) add(m outbox.Message, now time.Time) *row {
	s := &tx.db.state
	s.seq++
	m.Payload = bytes.Clone(m.Payload)
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	m.Headers = maps.Clone(m.Headers)
	if !m.AvailableAt.IsZero() {
		m.AvailableAt = m.AvailableAt.UTC().Truncate(time.Microsecond)
	}
	r := &row{tx: tx.id, Record: outbox.Record{
		Message: m, Partition: partitionOf(&m, tx.db.config.Partitions), Seq: s.seq, CreatedAt: now,
	}}
	tx.rows = append(tx.rows, r)
	s.ids[m.ID] = r
	return r
}

func noTransaction(cause error) error {
	return &outbox.Error{Code: outbox.ErrNoTransaction.Code, Op: "write message", Detail: outbox.ErrNoTransaction.Detail, Err: cause}
}
