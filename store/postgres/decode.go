package postgres

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onwardhq/onward/outbox"
)

// Columns of the statements that return messages: what the read was, then the message.
const (
	headColumns   = 4
	recordColumns = 18
)

// decoder takes values out of rows without a copy in between. Values that come as text (a pool that prepares nothing)
// go through pgx's own decoding. The first error stays.
type decoder struct {
	raw    [][]byte
	fields []pgconn.FieldDescription
	types  *pgtype.Map
	last   [recordColumns]string // text columns repeat from row to row: one string serves many
	err    error
}

func (d *decoder) row(rows pgx.Rows) {
	if d.fields == nil {
		d.fields, d.types = rows.FieldDescriptions(), rows.Conn().TypeMap()
	}
	d.raw = rows.RawValues()
}

// other decodes what is not in the binary format.
func (d *decoder) other(i int, dest any) {
	if d.raw[i] == nil {
		return
	}
	if err := d.types.Scan(d.fields[i].DataTypeOID, d.fields[i].Format, d.raw[i], dest); err != nil && d.err == nil {
		d.err = fmt.Errorf("column %d: %w", i+1, err)
	}
}

func (d *decoder) binary(i, size int) bool {
	return d.fields[i].Format == pgtype.BinaryFormatCode && len(d.raw[i]) == size
}

func (d *decoder) int(i int) (n int64) {
	switch {
	case d.binary(i, 8):
		return int64(binary.BigEndian.Uint64(d.raw[i])) //nolint:gosec // the bits of a bigint
	case d.binary(i, 4):
		return int64(int32(binary.BigEndian.Uint32(d.raw[i]))) //nolint:gosec // the bits of an int
	}
	d.other(i, &n)
	return n
}

func (d *decoder) ints(i int) (ns []int64) {
	d.other(i, &ns)
	return ns
}

func (d *decoder) bool(i int) (b bool) {
	if d.binary(i, 1) {
		return d.raw[i][0] != 0
	}
	d.other(i, &b)
	return b
}

func (d *decoder) uuid(i int) (id outbox.ID) {
	if d.binary(i, 16) {
		return outbox.ID(d.raw[i])
	}
	d.other(i, (*[16]byte)(&id))
	return id
}

func (d *decoder) bytes(i int) (b []byte) {
	if d.fields[i].Format == pgtype.BinaryFormatCode {
		return append(make([]byte, 0, len(d.raw[i])), d.raw[i]...)
	}
	d.other(i, &b)
	return b
}

// epoch is where PostgreSQL counts microseconds from.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const epochMicros = 946684800000000

func (d *decoder) time(i int) (t time.Time) {
	if d.binary(i, 8) {
		if us := d.int(i); us < 1<<62 && us > -1<<62 { // infinity is for ever in the future or past: decoded below
			return time.UnixMicro(us + epochMicros).UTC()
		}
		return farTime(d.int(i))
	}
	d.other(i, &t)
	return t.UTC()
}

// farTime stands for infinity.
func farTime(us int64) time.Time {
	if us > 0 {
		return epoch.AddDate(290000, 0, 0)
	}
	return epoch.AddDate(-6000, 0, 0)
}

// text returns a text; k tells columns whose values repeat apart.
func (d *decoder) text(i, k int) string {
	if d.last[k] != string(d.raw[i]) {
		d.last[k] = string(d.raw[i])
	}
	return d.last[k]
}

// record decodes the columns of queries/session/record.sql, from column at on.
func (d *decoder) record(at int, r *outbox.Record) {
	r.Partition, r.Seq, r.ID = int(d.int(at)), d.int(at+1), d.uuid(at+2)
	r.Topic, r.Key, r.Type = d.text(at+3, 0), string(d.raw[at+4]), d.text(at+5, 1)
	r.Payload, r.ContentType = d.bytes(at+6), d.text(at+7, 2)
	if d.raw[at+8] != nil {
		if err := json.Unmarshal(d.raw[at+8], &r.Headers); err != nil && d.err == nil {
			d.err = fmt.Errorf("headers of message %s: %w", r.ID, err)
		}
	}
	r.Scope, r.CorrelationID, r.CausationID = d.text(at+9, 3), string(d.raw[at+10]), string(d.raw[at+11])
	r.AggregateType, r.AggregateID, r.EventID = d.text(at+12, 4), string(d.raw[at+13]), string(d.raw[at+14])
	r.KeySeq, r.CreatedAt = d.int(at+15), d.time(at+16)
	if d.raw[at+17] != nil {
		r.AvailableAt = d.time(at + 17)
	}
}
