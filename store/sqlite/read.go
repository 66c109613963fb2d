package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Read returns the next messages. Numbers become visible in their order, so there are no late ones. While nobody has
// written to the file, as SQLite's data_version says, an answer costs no look at a table.
func (s *Session) Read(ctx context.Context, room store.Room) (page store.Page, err error) {
	const op = "read"
	if err := s.usable(op, false); err != nil {
		return page, err
	}
	err = s.store.reader.use(ctx, func(c *call) error {
		s.mu.Lock()
		at, epoch, quiet := s.at, s.epoch, s.quiet
		s.mu.Unlock()
		var version int64
		if _, err := c.row("data_version", nil, &version); err != nil {
			return err
		}
		limit := min(room.Messages, s.relay.Page)
		if limit <= 0 || !slices.Contains(room.Partitions, 0) {
			limit = 0
		}
		if quiet == version || epoch == 0 && limit == 0 {
			page = s.handOver(epoch, found{}, room.Mark)
			return nil
		}
		var f found
		err := c.read(func() error {
			v, err := s.look(c)
			if err != nil {
				return err
			}
			if v.seq > v.newest || at > v.newest {
				return lineageChanged()
			}
			s.noteMark(v.newest)
			if epoch == 0 || !v.held || v.epoch != epoch || limit == 0 {
				limit = 0
				return nil
			}
			f, err = s.next(c, v, at, limit, min(room.Bytes, s.relay.PageBytes))
			return err
		})
		if err != nil {
			return err
		}
		f.all = limit > 0 && !f.more
		page = s.handOver(epoch, f, room.Mark)
		if limit > 0 && len(f.records) == 0 && !f.more {
			s.mu.Lock()
			if s.epoch == epoch && s.at == max(at, f.upto) {
				s.quiet = version // read before the look: whatever came between changes it
			}
			s.mu.Unlock()
		}
		return nil
	})
	return page, s.failed(op, err)
}

// found is what a read found.
type found struct {
	records []store.Record
	upto    int64 // what stands between the last record and this is not taken
	more    bool
	all     bool // there is nothing behind it
}

func (s *Session) noteMark(newest int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mark < 0 {
		s.mark = newest
	}
}

// mostPassed is how many messages a read passes over at most; then it answers, and there is more.
const mostPassed = 20_000

// next reads up to limit messages and bytes that the sink takes; one message fits in any room.
func (s *Session) next(c *call, v view, at int64, limit, bytes int) (f found, err error) {
	if s.takes.All() {
		f.records, f.more, err = c.page("page", []any{s.sink, at, limit + 1, v.now}, limit, bytes)
		f.upto = max(at, last(f.records))
		return f, err
	}
	chosen, read := []int64{}, 0
	f.upto = at
	err = c.query("topics", []any{at, s.passes + 1}, func(rows *sql.Rows) (bool, error) {
		var seq int64
		var topic string
		if f.more = read == s.passes || len(chosen) == limit; f.more {
			return true, nil
		}
		if err := rows.Scan(&seq, &topic); err != nil {
			return false, err
		}
		if s.takes.Match(topic) {
			chosen = append(chosen, seq)
		}
		read++
		f.upto = seq
		return false, nil
	})
	if err != nil || len(chosen) == 0 {
		return f, err
	}
	text, err := json.Marshal(chosen)
	if err != nil {
		return f, err
	}
	var cut bool
	f.records, cut, err = c.page("chosen", []any{s.sink, string(text), limit + 1, v.now}, limit, bytes)
	if cut {
		f.upto, f.more = last(f.records), true
	}
	return f, err
}

func last(records []store.Record) int64 {
	if len(records) == 0 {
		return 0
	}
	return records[len(records)-1].Seq
}

// page reads up to limit messages and bytes of a statement that gives one more; one message fits in any room.
func (c *call) page(name string, args []any, limit, bytes int) (records []store.Record, more bool, err error) {
	now := args[3].(int64)
	records = make([]store.Record, 0, min(limit, 256))
	var row recordRow
	var blocked bool
	fields := append(row.fields(), &blocked)
	err = c.query(name, args, func(rows *sql.Rows) (bool, error) {
		if more = len(records) == limit; more {
			return true, nil
		}
		if err := rows.Scan(fields...); err != nil {
			return false, err
		}
		if more = len(records) > 0 && len(row.payload) > bytes; more {
			return true, nil
		}
		bytes -= len(row.payload)
		record, err := row.record()
		records = append(records, store.Record{Record: record, Blocked: blocked, Ahead: row.availableAt.Valid && row.availableAt.Int64 > now})
		return false, err
	})
	return records, more, err
}

// handOver numbers a page and remembers what it gave and passed over, unless the partition was lost meanwhile.
func (s *Session) handOver(epoch int64, f found, mark bool) (page store.Page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page++
	page.No = s.page
	defer func() { s.sayPast(&page, epoch, f.all, mark) }()
	if f.upto == 0 || s.epoch != epoch || s.void {
		return page
	}
	page.More = f.more
	s.at = max(s.at, f.upto)
	if len(f.records) == 0 {
		return page
	}
	r := &read{no: s.page, seqs: make([]int64, len(f.records)), upto: f.upto}
	for i := range f.records {
		r.seqs[i] = f.records[i].Seq
	}
	s.reads = append(s.reads, r)
	page.Parts = []store.Part{{Owned: store.Owned{Partition: 0, Epoch: epoch}, Records: f.records}}
	return page
}

// sayPast adds to a page whether the partition is past the mark.
func (s *Session) sayPast(page *store.Page, epoch int64, all, asked bool) {
	held := epoch != 0 && s.epoch == epoch && !s.void
	s.past = s.past || held && (all || s.mark >= 0 && s.at >= s.mark)
	if asked {
		page.Mark = max(0, s.mark)
		if held && s.past {
			page.Past = []store.Owned{{Partition: 0, Epoch: epoch}}
		}
	}
}

// recordRow takes the columns of record in queries/columns.sql.
type recordRow struct {
	outbox.Record
	id, headers string
	payload     []byte
	createdAt   int64
	availableAt sql.NullInt64
}

func (r *recordRow) fields() []any {
	m := &r.Message
	return []any{
		&r.Seq, &r.id, &m.Topic, &m.Key, &m.Type, &r.payload, &m.ContentType, &r.headers, &m.Scope, &m.CorrelationID,
		&m.CausationID, &m.AggregateType, &m.AggregateID, &m.EventID, &r.KeySeq, &r.createdAt, &r.availableAt,
	}
}

// record is the row as a value of its own; the row can be scanned into again.
func (r *recordRow) record() (record outbox.Record, err error) {
	record = r.Record
	if record.ID, err = outbox.ParseID(r.id); err != nil {
		return record, fmt.Errorf("message %d: %w", r.Seq, err)
	}
	record.Headers = nil
	if r.headers != "{}" {
		if err := json.Unmarshal([]byte(r.headers), &record.Headers); err != nil {
			return record, fmt.Errorf("headers of message %s: %w", r.id, err)
		}
	}
	record.Payload, r.payload = r.payload, nil
	record.CreatedAt, record.AvailableAt = microTime(r.createdAt), time.Time{}
	if r.availableAt.Valid {
		record.AvailableAt = microTime(r.availableAt.Int64)
	}
	return record, nil
}

func microTime(us int64) time.Time { return time.UnixMicro(us).UTC() }

func nullTime(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return microTime(us.Int64)
}
