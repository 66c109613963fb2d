package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Messages lists messages, newest first: by transaction and number, the messages of one key by number alone. An id, a
// key, and what is parked or dead are found by index; any other filter reads at most 100,000 messages for a page and then
// says Partial. Since and Until look at when a message was written.
func (a *Admin) Messages(ctx context.Context, f store.Filter) (list store.MessageList, err error) {
	err = a.search(ctx, "list messages", f, func(tx pgx.Tx, q search) (err error) {
		switch {
		case q.impossible():
			return nil
		case !q.ID.IsZero():
			list, err = a.listOne(ctx, tx, q)
			return err
		}
		list, err = a.listPage(ctx, tx, q)
		if err != nil {
			return err
		}
		return a.addStates(ctx, tx, q.Sink, list.Messages)
	})
	return list, err
}

// listOne is the list of the message that the filter's id names.
func (a *Admin) listOne(ctx context.Context, tx pgx.Tx, q search) (list store.MessageList, err error) {
	m, err := a.findMessage(ctx, tx, q.ID)
	if err != nil || m == nil {
		return list, err
	}
	found := []store.MessageInfo{*m}
	if err := a.addStates(ctx, tx, q.Sink, found); err != nil {
		return list, err
	}
	if q.passesFields(&m.Record, m.CreatedAt) && q.passesState(found[0].States) {
		found[0].Payload = nil
		list.Messages = found
	}
	return list, nil
}

// listPage reads a page by the index that serves the filter best.
func (a *Admin) listPage(ctx context.Context, tx pgx.Tx, q search) (list store.MessageList, err error) {
	name := "list_log"
	args := []any{
		q.Sink, q.txText(), q.after.seq, a.scan, q.limit + 1,
		q.Topic, q.Type, q.EventID, q.CorrelationID, q.Scope, orNull(q.Since), orNull(q.Until), string(q.State),
	}
	switch {
	case q.Key != "":
		name = "list_key"
		args[1] = q.Key
		args = append(args, string(q.Reason), string(q.Code), q.Attempts, q.State != "" || q.asksForFailure())
	case q.exceptional():
		name = "list_exceptions"
		args = append(args, string(q.Reason), string(q.Code), q.Attempts)
	default:
		floor := "0"
		if q.State == store.StatePending {
			if err := tx.QueryRow(ctx, a.sql["pending_floor"], q.Sink).Scan(&floor); err != nil {
				return list, err
			}
		}
		args = append(args, floor)
	}
	return a.scanPage(ctx, tx, a.sql[name], args, q.limit)
}

// scanPage reads at most limit messages, and where to go on.
func (a *Admin) scanPage(ctx context.Context, tx pgx.Tx, sql string, args []any, limit int) (list store.MessageList, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return list, err
	}
	defer rows.Close()
	var shown place
	read := 0
	for ; rows.Next(); read++ {
		var (
			row         messageRow
			last, found bool
		)
		if err := rows.Scan(append([]any{&last, &found}, row.fields()...)...); err != nil {
			return list, err
		}
		if err := row.finish(); err != nil {
			return list, err
		}
		n := len(list.Messages)
		switch {
		case found && n == limit && row.place() != shown:
			list.Next = shown.token("") // there is more
			return list, nil
		case found && (n == 0 || row.place() != shown): // a message that is parked in two sinks comes twice
			shown = row.place()
			list.Messages = append(list.Messages, row.message())
		}
		if last {
			list.Next, list.Partial = row.place().token(""), true
		}
	}
	if read > limit && list.Next == "" { // copies of a few messages filled the page
		list.Next = shown.token("")
	}
	return list, rows.Err()
}

// Message returns one message with its payload and its state in every sink; store.ErrNotFound.
func (a *Admin) Message(ctx context.Context, id outbox.ID) (m store.MessageInfo, err error) {
	const op = "show message"
	err = a.read(ctx, op, func(tx pgx.Tx) error {
		found, err := a.findMessage(ctx, tx, id)
		if err != nil {
			return err
		}
		if found == nil {
			return &outbox.Error{
				Code: store.ErrNotFound.Code, Op: op, Detail: fmt.Sprintf("there is no message %s", id),
				Hint: "it was never committed, or retention has removed it",
			}
		}
		one := []store.MessageInfo{*found}
		if err := a.addStates(ctx, tx, "", one); err != nil {
			return err
		}
		m = one[0]
		pauses, err := a.pauses(ctx, tx, "")
		if err != nil {
			return err
		}
		store.MarkPaused(&m, pauses)
		return a.addPublished(ctx, tx, &m)
	})
	return m, err
}

// findMessage returns nil where there is none.
func (a *Admin) findMessage(ctx context.Context, tx pgx.Tx, id outbox.ID) (*store.MessageInfo, error) {
	found, err := collect(ctx, tx, a.sql["message"], []any{[16]byte(id)}, func(row pgx.CollectableRow) (store.MessageInfo, error) {
		var r messageRow
		if err := row.Scan(append(r.fields(), &r.record.Payload)...); err != nil {
			return store.MessageInfo{}, err
		}
		err := r.finish()
		return r.message(), err
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// addStates fills in where each message stands in the sink, or in every sink where sink is empty.
func (a *Admin) addStates(ctx context.Context, tx pgx.Tx, sink string, ms []store.MessageInfo) error {
	if len(ms) == 0 {
		return nil
	}
	ids, partitions := make([][16]byte, len(ms)), make([]int32, len(ms))
	seqs, txids, topics := make([]int64, len(ms)), make([]string, len(ms)), make([]string, len(ms))
	for i := range ms {
		ids[i], partitions[i], seqs[i] = ms[i].ID, int32(ms[i].Partition), ms[i].Seq //nolint:gosec // an int in the database
		txids[i], topics[i] = fmt.Sprint(ms[i].Tx), ms[i].Topic
	}
	rows, err := tx.Query(ctx, a.sql["states"], sink, ids, partitions, seqs, txids, topics)
	if err != nil {
		return err
	}
	var (
		i   int
		s   store.SinkState
		due nullTime
	)
	_, err = pgx.ForEachRow(rows, []any{&i, &s.Sink, &s.State, &s.Reason, &s.Attempts, &due, &s.LastCode, &s.LastError}, func() error {
		state := s
		if !due.IsZero() {
			at := due.Time
			state.DueAt = &at
		}
		ms[i].States = append(ms[i].States, state)
		return nil
	})
	return err
}
