package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/store"
)

var (
	_ store.Pauser = (*Admin)(nil)
	_ store.Keys   = (*Admin)(nil)
)

// Pause holds messages back, by the SQL function of that name, which has the rules.
func (a *Admin) Pause(ctx context.Context, act store.PauseAct) (made store.Pause, err error) {
	op := "pause " + string(act.Kind)
	now, err := a.now(ctx, op)
	if err != nil {
		return made, err
	}
	if err := act.Check(op, now); err != nil {
		return made, err
	}
	err = a.acts(ctx, op, act.DryRun, func(tx pgx.Tx) error {
		var until *time.Time
		if !act.Until.IsZero() {
			until = act.Ends(now)
		}
		var id, lasts int64
		if act.For > 0 {
			lasts = max(act.For.Microseconds(), 1)
		}
		args := []any{act.Sink, string(act.Kind), act.Name, act.Reason, lasts, until, act.Actor}
		if err := tx.QueryRow(ctx, a.sql["pause"], args...).Scan(&id); err != nil {
			return actError(op, err)
		}
		some, err := a.pausesOf(ctx, tx, act.Sink, id)
		if len(some) > 0 {
			made = some[0]
		}
		return err
	})
	return made, err
}

// now is the database's clock.
func (a *Admin) now(ctx context.Context, op string) (now time.Time, err error) {
	err = a.pool.QueryRow(ctx, a.sql["now"]).Scan(&now)
	return now, adminError(op, err)
}

// Resume ends a pause, by the SQL function of that name. A running relay takes up what it held within a second.
func (a *Admin) Resume(ctx context.Context, act store.PauseAct) error {
	op := "resume " + string(act.Kind)
	if err := act.Check(op, time.Time{}); err != nil {
		return err
	}
	return a.act(ctx, op, act.DryRun, a.sql["resume"], act.Sink, string(act.Kind), act.Name, act.Reason, act.Actor)
}

// Pauses lists the pauses that have not ended.
func (a *Admin) Pauses(ctx context.Context, sink string) (all []store.Pause, err error) {
	err = a.read(ctx, "list pauses", func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, sink); err != nil {
			return err
		}
		all, err = a.pauses(ctx, tx, sink)
		return err
	})
	return all, err
}

func (a *Admin) pauses(ctx context.Context, tx pgx.Tx, sink string) ([]store.Pause, error) {
	return a.pausesOf(ctx, tx, sink, 0)
}

// pausesOf lists those of a sink, or the one with this number.
func (a *Admin) pausesOf(ctx context.Context, tx pgx.Tx, sink string, id int64) ([]store.Pause, error) {
	all, err := collect(ctx, tx, a.sql["pauses"], []any{sink, id}, func(row pgx.CollectableRow) (p store.Pause, err error) {
		var text []byte
		if err := row.Scan(&text); err != nil {
			return p, err
		}
		return decodePause(text)
	})
	slices.SortFunc(all, store.ComparePauses)
	return all, err
}

// pauseRow is a pause as the statements write it.
type pauseRow struct {
	ID int64 `json:"id"`
	store.Pause
}

func (r *pauseRow) pause() store.Pause {
	p := r.Pause
	p.ID, p.CreatedAt = r.ID, p.CreatedAt.UTC()
	if p.ExpiresAt != nil {
		at := p.ExpiresAt.UTC()
		p.ExpiresAt = &at
	}
	return p
}

func decodePause(text []byte) (store.Pause, error) {
	var r pauseRow
	if err := json.Unmarshal(text, &r); err != nil {
		return store.Pause{}, fmt.Errorf("a pause: %w", err)
	}
	return r.pause(), nil
}

func decodePauses(text []byte) (all []store.Pause, err error) {
	var rows []pauseRow
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("pauses: %w", err)
	}
	for i := range rows {
		all = append(all, rows[i].pause())
	}
	return all, nil
}
