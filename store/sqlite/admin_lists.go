package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Messages lists, newest first. Where most of what it reads does not pass the filter it stops after 100,000 rows and says so.
func (a *Admin) Messages(ctx context.Context, f store.Filter) (list store.MessageList, err error) {
	const op = "list messages"
	q, err := newSearch(f, op)
	if err != nil {
		return list, err
	}
	err = a.read(ctx, op, q.Sink, func(c *call) error {
		from, name, rows := int64(1), "list_exceptions", 0
		if !q.exceptional() {
			name = "list_log"
			if _, err := c.row("window", []any{q.seq, a.scan}, &rows, &from); err != nil {
				return err
			}
		}
		list, err = c.messages(&q, name, from)
		if list.Next == "" && rows == a.scan && from > 1 {
			list.Next, list.Partial = strconv.FormatInt(from, 10), true
		}
		return err
	})
	return list, err
}

// chunk is how many rows are read before their states are looked at.
const chunk = 500

// messages reads on until the page is full or nothing is left above from.
func (c *call) messages(q *search, name string, from int64) (list store.MessageList, err error) {
	before := q.seq
	for {
		var found []store.MessageInfo
		var r recordRow
		args := append([]any{before, from, chunk}, q.fields()...)
		err := c.query(name, args, func(rows *sql.Rows) (bool, error) {
			var m store.MessageInfo
			if err := rows.Scan(append(r.fields(), &m.PayloadBytes)...); err != nil {
				return false, err
			}
			m.Record, err = r.record()
			found = append(found, m)
			return false, err
		})
		if err != nil {
			return list, err
		}
		for _, m := range found {
			if m.States, err = c.states(&m.Record, q.Sink); err != nil {
				return list, err
			}
			if !q.passes(m.States) {
				continue
			}
			if len(list.Messages) == q.Limit {
				list.Next = strconv.FormatInt(list.Messages[q.Limit-1].Seq, 10)
				return list, nil
			}
			list.Messages = append(list.Messages, m)
		}
		if len(found) < chunk {
			return list, nil
		}
		before = found[chunk-1].Seq
	}
}

// states says where a message stands in a sink, or in each that takes it.
func (c *call) states(m *outbox.Record, sink string) (all []store.SinkState, err error) {
	err = c.query("states", []any{m.ID.String(), m.Seq, sink}, func(rows *sql.Rows) (bool, error) {
		var s store.SinkState
		var reason, parkedCode, parkedError, deadCode, deadError sql.NullString
		var parkedAttempts, deadAttempts, due sql.NullInt64
		var discarded, passed, before bool
		var topics, exclude string
		err := rows.Scan(&s.Sink, &reason, &parkedAttempts, &due, &parkedCode, &parkedError, &deadAttempts, &deadCode, &deadError,
			&discarded, &passed, &before, &topics, &exclude)
		if err != nil {
			return false, err
		}
		takes, err := selectionOf(topics, exclude)
		switch {
		case reason.Valid:
			s.State, s.Reason, s.Attempts = store.StateParked, store.Reason(reason.String), int(parkedAttempts.Int64)
			s.LastCode, s.LastError = outbox.Code(parkedCode.String), parkedError.String
			if due.Valid {
				at := microTime(due.Int64)
				s.DueAt = &at
			}
		case deadAttempts.Valid:
			s.State, s.Attempts, s.LastCode, s.LastError = store.StateDead, int(deadAttempts.Int64), outbox.Code(deadCode.String), deadError.String
		case before || !takes.Match(m.Topic):
			return false, err
		case discarded:
			s.State = store.StateDiscarded
		case passed:
			s.State = store.StatePublished
		default:
			s.State = store.StatePending
		}
		all = append(all, s)
		return false, err
	})
	return all, err
}

// Message returns one message, whole, with its state in every sink.
func (a *Admin) Message(ctx context.Context, id outbox.ID) (m store.MessageInfo, err error) {
	err = a.read(ctx, "show message "+id.String(), "", func(c *call) error {
		var r recordRow
		found, err := c.row("message", []any{id.String()}, append(r.fields(), &m.PayloadBytes)...)
		if err != nil {
			return err
		}
		if !found {
			return &outbox.Error{Code: store.ErrNotFound.Code, Detail: "there is no message " + id.String()}
		}
		if m.Record, err = r.record(); err == nil {
			m.States, err = c.states(&m.Record, "")
		}
		if err != nil {
			return err
		}
		pauses, err := c.pauses("")
		if err != nil {
			return err
		}
		store.MarkPaused(&m, pauses)
		return c.published(&m)
	})
	return m, err
}

// Dead lists dead letters, newest first; with their payloads and attempts where the filter names one.
func (a *Admin) Dead(ctx context.Context, f store.Filter) (list store.DeadList, err error) {
	const op = "list dead letters"
	q, err := newSearch(f, op)
	if err != nil {
		return list, err
	}
	err = a.read(ctx, op, q.Sink, func(c *call) error {
		if q.State != "" && q.State != store.StateDead || q.Reason != "" { // what is dead has one state and no reason
			return nil
		}
		if list, err = c.dead(&q); err != nil || q.ID.IsZero() {
			return err
		}
		for i := range list.Dead {
			if err := c.whole(&list.Dead[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return list, err
}

func (c *call) dead(q *search) (list store.DeadList, err error) {
	args := append([]any{q.seq, q.sink, q.Limit + 1}, q.fields()...)
	args = append(args, q.Sink, string(q.Code), q.Attempts)
	var r recordRow
	err = c.query("deadlist", args, func(rows *sql.Rows) (bool, error) {
		if n := len(list.Dead); n == q.Limit {
			last := &list.Dead[n-1]
			list.Next = strconv.FormatInt(last.Seq, 10) + "." + last.Sink
			return true, nil
		}
		var d store.DeadInfo
		var first, last int64
		err := rows.Scan(append(r.fields(), &d.PayloadBytes, &d.Sink, &d.Code, &d.Error, &d.Attempts, &first, &last, &d.Relay, &d.Blocks)...)
		if err != nil {
			return false, err
		}
		d.Record, err = r.record()
		d.FirstFailure, d.LastFailure = microTime(first), microTime(last)
		list.Dead = append(list.Dead, d)
		return false, err
	})
	return list, err
}

// whole adds what only one dead letter is shown with.
func (c *call) whole(d *store.DeadInfo) error {
	id := d.ID.String()
	if _, err := c.row("payload_and_behind", []any{d.Sink, id}, &d.Payload, &d.Behind); err != nil {
		return err
	}
	return c.query("attempts", []any{d.Sink, id}, func(rows *sql.Rows) (bool, error) {
		var t store.AttemptInfo
		var at, took int64
		err := rows.Scan(&at, &t.Relay, &t.No, &t.Outcome, &t.Code, &t.Error, &took)
		t.At, t.Took = microTime(at), time.Duration(took)*time.Microsecond
		d.Tries = append(d.Tries, t)
		return false, err
	})
}
