package postgres

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// messageRow receives the columns of a message in the order in which all statements of Admin have them, txid first and
// the payload's size last.
type messageRow struct {
	record    outbox.Record
	tx        uint64
	bytes     int
	txid      string
	headers   string
	available nullTime
}

func (r *messageRow) fields() []any {
	m := &r.record
	return []any{
		&r.txid, &m.Seq, &m.Partition, (*[16]byte)(&m.ID), &m.Topic, &m.Key, &m.Type, &m.ContentType, &r.headers, &m.Scope,
		&m.CorrelationID, &m.CausationID, &m.AggregateType, &m.AggregateID, &m.EventID, &m.KeySeq, &m.CreatedAt, &r.available,
		&r.bytes,
	}
}

// finish decodes what could not be scanned as it is.
func (r *messageRow) finish() (err error) {
	r.record.AvailableAt = r.available.Time
	if r.tx, err = strconv.ParseUint(r.txid, 10, 64); err != nil {
		return fmt.Errorf("transaction of message %s: %w", r.record.ID, err)
	}
	if r.headers == "{}" {
		return nil
	}
	if err := json.Unmarshal([]byte(r.headers), &r.record.Headers); err != nil {
		return fmt.Errorf("headers of message %s: %w", r.record.ID, err)
	}
	return nil
}

func (r *messageRow) message() store.MessageInfo {
	return store.MessageInfo{Record: r.record, PayloadBytes: r.bytes, Tx: r.tx}
}

// place is where a list goes on: the transaction and the number of the last row seen.
type place struct {
	tx  uint64
	seq int64
}

func (r *messageRow) place() place { return place{tx: r.tx, seq: r.record.Seq} }
