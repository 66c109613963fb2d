package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
)

// Written returns what tx has written to the outbox so far, in order, by this writer or otherwise: for tests, see
// outboxtest.RequireWritten. It needs more rights than a producer has: SELECT on the table of messages.
func (w *Writer) Written(ctx context.Context, tx pgx.Tx) ([]outbox.Record, error) {
	if w.writing.fault != nil {
		return nil, w.writing.fault
	}
	if isNil(tx) {
		return nil, noTransaction("the transaction is nil")
	}
	rows, err := tx.Query(ctx, w.writing.sql["of_transaction"])
	if err != nil {
		return nil, w.writing.refused(err, nil)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outbox.Record, error) { return scanRecord(row) })
	if err != nil {
		return nil, w.writing.refused(err, nil)
	}
	return records, nil
}

// Written is Writer.Written.
func (w *SQLWriter) Written(ctx context.Context, tx *sql.Tx) (records []outbox.Record, err error) {
	if w.writing.fault != nil {
		return nil, w.writing.fault
	}
	if tx == nil {
		return nil, noTransaction("the transaction is nil")
	}
	rows, err := tx.QueryContext(ctx, w.writing.sql["of_transaction"])
	if err != nil {
		return nil, w.writing.refused(err, nil)
	}
	defer func() { _ = rows.Close() }() // a second time after the last row, which does nothing
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	if err := rows.Err(); err != nil {
		return nil, w.writing.refused(err, nil)
	}
	return records, nil
}

// scanRecord reads a row of of_transaction.sql.
func scanRecord(row interface{ Scan(...any) error }) (r outbox.Record, err error) {
	var (
		id, headers string
		createdAt   int64
		availableAt *int64
	)
	err = row.Scan(&id, &r.Partition, &r.Seq, &r.KeySeq, &r.Topic, &r.Key, &r.Type, &r.Payload, &r.ContentType, &headers, &r.Scope,
		&r.CorrelationID, &r.CausationID, &r.AggregateType, &r.AggregateID, &r.EventID, &createdAt, &availableAt)
	if err != nil {
		return r, fmt.Errorf("read written message: %w", err)
	}
	if r.ID, err = outbox.ParseID(id); err != nil {
		return r, err
	}
	if headers != "{}" {
		if err := json.Unmarshal([]byte(headers), &r.Headers); err != nil {
			return r, fmt.Errorf("read headers of message %s: %w", r.ID, err)
		}
	}
	r.CreatedAt = time.UnixMicro(createdAt).UTC()
	if availableAt != nil {
		r.AvailableAt = time.UnixMicro(*availableAt).UTC()
	}
	return r, nil
}
