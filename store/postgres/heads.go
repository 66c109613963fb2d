package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

// headsAgain is when to ask for the heads of partitions whose first read is on its way.
const headsAgain = 20 * time.Millisecond

// Heads returns parked messages that are due: at most one of each key, none of a partition whose late rows of the time before
// it was loaded have not been read. Errors: ErrReload.
func (s *Session) Heads(ctx context.Context, partitions []int, most int) (store.Heads, error) {
	const op = "read parked heads"
	if err := s.usable(op); err != nil {
		return store.Heads{}, err
	}
	s.mu.Lock()
	parts, all := s.ledger.caughtUp(partitions)
	looks := s.quiet
	s.mu.Unlock()
	var found headRows
	quiet, err := false, error(nil)
	if looks {
		found.Next, quiet, err = s.stillQuiet(ctx)
	}
	if err == nil && !quiet {
		err = s.readHeads(ctx, &found, parts, most)
		quiet = !looks && found.nothing() // what it saw and did not find may be of other relays: the next one reads at once
	}
	s.mu.Lock()
	s.quiet = quiet
	s.mu.Unlock()
	if err != nil {
		return store.Heads{}, s.fail(op, "nothing was read", err)
	}
	if !all && (found.Next == 0 || found.Next > headsAgain) {
		found.Next = headsAgain
	}
	return found.Heads, nil
}

// stillQuiet looks, together with all that look, whether the sink has pauses, or parked messages that are due. Only where it has is
// more to be read. next: when one will be due.
func (s *Session) stillQuiet(ctx context.Context) (next time.Duration, quiet bool, err error) {
	v, err := s.look(ctx)
	switch {
	case err != nil || v.paused:
		return 0, false, err
	case v.due == nil:
		return 0, true, nil
	}
	return *v.due, *v.due > 0, nil
}

// readHeads reads them, and does what is to be done first.
func (s *Session) readHeads(ctx context.Context, found *headRows, parts []int32, most int) error {
	err := s.ask(ctx, "heads", []any{s.sink, parts, most}, found.scan)
	if err == nil && len(found.join) > 0 {
		err = s.lineUp(ctx, found.join)
	}
	if err == nil && found.sweep {
		err = s.trip(ctx, true, "sweep_pauses", []any{s.sink}, func(pgx.Rows) error { return nil })
	}
	found.More = found.rows >= most || len(found.join) > 0
	return err
}

// headRows are the heads, and the scheduled messages that must join a line first.
type headRows struct {
	store.Heads
	join  []store.Parked
	rows  int
	sweep bool // a pause that has ended holds nothing any more
}

// nothing: there are no pauses, and nothing was due.
func (h *headRows) nothing() bool { return h.rows == 0 && h.Pauses == nil && !h.sweep }

func (h *headRows) scan(rows pgx.Rows) error {
	var d decoder
	seen := make(map[store.Key]bool)
	for rows.Next() {
		d.row(rows)
		if d.raw[0] != nil {
			h.head(&d)
			continue
		}
		h.rows++
		p := d.parked(5)
		p.Overdue = time.Duration(d.int(4)) * time.Microsecond
		k := store.Key{Partition: p.Partition, Key: p.Key}
		switch {
		case d.err != nil:
			return d.err
		case d.bool(3):
			h.join = append(h.join, p) // and what it joins may be due: a row of its key further on
			continue
		case p.Key == "" || !seen[k]:
			h.Due = append(h.Due, p)
		}
		seen[k] = true
	}
	return errors.Join(d.err, rows.Err())
}

// longest keeps a time in the year 9999 a duration: as it would not be one, the relay would ask again at once, for ever.
const longest = 1000 * time.Hour

// head decodes the first row.
func (h *headRows) head(d *decoder) {
	if us := d.int(0); us >= 0 {
		h.Next = max(time.Duration(min(us, int64(longest/time.Microsecond)))*time.Microsecond, time.Microsecond)
	}
	h.sweep = d.bool(2)
	if d.raw[1] == nil {
		return
	}
	var err error
	if h.Pauses, err = decodePauses(d.raw[1]); err != nil && d.err == nil {
		d.err = err
	}
}

// parked decodes the columns of queries/session/parked.sql.
func (d *decoder) parked(at int) (p store.Parked) {
	d.record(at, &p.Record)
	at += recordColumns
	p.Place = store.Place{Order: d.int(at), Seq: p.Seq}
	p.Reason = store.Reason(d.raw[at+1])
	p.Attempts, p.Before = int(d.int(at+2)), int(d.int(at+3))
	return p
}

// lineUp puts scheduled messages that are due behind what their keys have waiting. The line may have emptied meanwhile: then
// they are its front, so the same transaction promotes.
func (s *Session) lineUp(ctx context.Context, join []store.Parked) error {
	ids, keys, parts := make([]string, len(join)), make([]string, len(join)), make([]int32, len(join))
	for i, p := range join {
		ids[i], keys[i], parts[i] = p.ID.String(), p.Key, int32(p.Partition) //nolint:gosec // at most 16,384
	}
	relay := s.member.ID.String()
	return s.store.trip(ctx, s.member.application, func(b *pgx.Batch) {
		b.Queue(s.sql["lock_lines"], s.sink, parts)
		b.Queue(s.sql["line_up"], s.sink, relay, ids)
		b.Queue(s.sql["promote"], s.sink, parts, keys, relay)
	}, func(r pgx.BatchResults) error {
		for range 3 {
			if _, err := r.Exec(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Followers returns the parked messages of a key in their order, those after the place given; none while a blocking dead
// letter stands before them. Scheduled ones that are not due yet wait elsewhere. Errors: ErrReload.
func (s *Session) Followers(ctx context.Context, k store.Key, after store.Place, room store.Room) ([]store.Parked, error) {
	const op = "read followers"
	if err := s.usable(op); err != nil {
		return nil, err
	}
	if room.Bytes <= 0 {
		room.Bytes = s.member.PageBytes
	}
	var all []store.Parked
	args := []any{s.sink, k.Partition, k.Key, after.Order, after.Seq, room.Messages, int64(room.Bytes)}
	err := s.ask(ctx, "followers", args, func(rows pgx.Rows) error {
		var d decoder
		for rows.Next() {
			d.row(rows)
			all = append(all, d.parked(0))
		}
		return errors.Join(d.err, rows.Err())
	})
	total := 0
	for _, p := range all {
		total += len(p.Payload)
	}
	if total > room.Bytes && len(all) > 1 {
		all = all[:len(all)-1]
	}
	if err != nil {
		return nil, s.fail(op, "nothing was read", err)
	}
	return all, nil
}
