package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

// Dead lists dead letters, newest first, by transaction, number and sink. A filter other than an id reads at most 100,000
// of them for a page and then says Partial. Since and Until look at when a message died. Where the filter names an id,
// payload, attempts and the number of messages behind it come along.
func (a *Admin) Dead(ctx context.Context, f store.Filter) (list store.DeadList, err error) {
	err = a.search(ctx, "list dead letters", f, func(tx pgx.Tx, q search) (err error) {
		switch {
		case q.State != "" && q.State != store.StateDead, q.Reason != "": // what is dead has one state and no reason
			return nil
		case !q.ID.IsZero():
			list.Dead, err = a.deadOf(ctx, tx, q)
		default:
			list, err = a.deadPage(ctx, tx, q)
		}
		return err
	})
	return list, err
}

type deadRow struct {
	messageRow
	dead store.DeadInfo
}

func (r *deadRow) fields() []any {
	d := &r.dead
	return append(r.messageRow.fields(),
		&d.Sink, &d.Code, &d.Error, &d.Attempts, &d.FirstFailure, &d.LastFailure, &d.Relay, &d.Blocks)
}

func (r *deadRow) finish() error {
	err := r.messageRow.finish()
	r.dead.Record, r.dead.PayloadBytes = r.record, r.bytes
	return err
}

func (a *Admin) deadPage(ctx context.Context, tx pgx.Tx, q search) (list store.DeadList, err error) {
	rows, err := tx.Query(ctx, a.sql["dead"], q.Sink, q.txText(), q.after.seq, a.scan, q.limit+1,
		q.Topic, q.Type, q.EventID, q.CorrelationID, q.Scope, orNull(q.Since), orNull(q.Until), string(q.Code), q.Attempts, q.Key, q.sink)
	if err != nil {
		return list, err
	}
	defer rows.Close()
	var shown string
	for rows.Next() {
		var (
			row         deadRow
			last, found bool
		)
		if err := rows.Scan(append([]any{&last, &found}, row.fields()...)...); err != nil {
			return list, err
		}
		if err := row.finish(); err != nil {
			return list, err
		}
		if found && len(list.Dead) == q.limit {
			list.Next = shown // there is more
			return list, nil
		}
		if found {
			list.Dead = append(list.Dead, row.dead)
			shown = row.place().token(row.dead.Sink)
		}
		if last {
			list.Next, list.Partial = row.place().token(row.dead.Sink), true
		}
	}
	return list, rows.Err()
}

// deadOf returns the dead letters of one message, whole.
func (a *Admin) deadOf(ctx context.Context, tx pgx.Tx, q search) ([]store.DeadInfo, error) {
	all, err := collect(ctx, tx, a.sql["dead_one"], []any{q.Sink, [16]byte(q.ID)}, func(row pgx.CollectableRow) (store.DeadInfo, error) {
		var r deadRow
		if err := row.Scan(append(r.fields(), &r.record.Payload, &r.dead.Behind)...); err != nil {
			return store.DeadInfo{}, err
		}
		err := r.finish()
		return r.dead, err
	})
	if err != nil {
		return nil, err
	}
	var found []store.DeadInfo
	for _, d := range all {
		if !q.passesFields(&d.Record, d.LastFailure) || q.Code != "" && q.Code != d.Code || d.Attempts < q.Attempts {
			continue
		}
		if d.Tries, err = a.attempts(ctx, tx, d.Sink, d.ID); err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, nil
}

func (a *Admin) attempts(ctx context.Context, tx pgx.Tx, sink string, id [16]byte) ([]store.AttemptInfo, error) {
	return collect(ctx, tx, a.sql["attempts"], []any{sink, id}, func(row pgx.CollectableRow) (t store.AttemptInfo, err error) {
		err = row.Scan(&t.At, &t.Relay, &t.No, &t.Outcome, &t.Code, &t.Error, &t.Took)
		return t, err
	})
}
