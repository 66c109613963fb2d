package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/store"
)

var (
	_ store.Pauser = (*Admin)(nil)
	_ store.Keys   = (*Admin)(nil)
)

// pauses returns those of a sink, or of all, that have not ended.
func (c *call) pauses(sink string) ([]store.Pause, error) { return c.pausesOf(sink, "", "") }

// pausesOf returns the pauses of a sink (empty: of all), of one kind and name where the kind is not empty.
func (c *call) pausesOf(sink string, kind store.PauseKind, name string) (all []store.Pause, err error) {
	err = c.query("pauses", []any{sink, string(kind), name}, func(rows *sql.Rows) (bool, error) {
		var p store.Pause
		var created int64
		var expires sql.NullInt64
		err := rows.Scan(&p.ID, &p.Sink, &p.Kind, &p.Name, &p.Reason, &p.Actor, &created, &expires)
		p.CreatedAt = microTime(created)
		if expires.Valid {
			at := microTime(expires.Int64)
			p.ExpiresAt = &at
		}
		all = append(all, p)
		return false, err
	})
	slices.SortFunc(all, store.ComparePauses)
	return all, err
}

// Pauses lists those that have not ended.
func (a *Admin) Pauses(ctx context.Context, sink string) (all []store.Pause, err error) {
	err = a.read(ctx, "list pauses", sink, func(c *call) error {
		all, err = c.pauses(sink)
		return err
	})
	return all, err
}

// Pause holds messages back.
func (a *Admin) Pause(ctx context.Context, act store.PauseAct) (made store.Pause, err error) {
	op := "pause " + string(act.Kind)
	err = a.pausing(ctx, op, act, func(c *call) (map[string]any, error) {
		var now, others int64
		if _, err := c.row("now", nil, &now); err != nil {
			return nil, err
		}
		if err := act.Check(op, microTime(now)); err != nil {
			return nil, err
		}
		if err := c.checkSink(act.Sink); err != nil {
			return nil, err
		}
		if _, err := c.exec("sweep_pauses", act.Sink); err != nil {
			return nil, err
		}
		if _, err := c.row("other_pauses", []any{act.Sink, string(act.Kind), act.Name}, &others); err != nil {
			return nil, err
		}
		if others >= store.MostPauses {
			return nil, act.TooMany(op)
		}
		var ends any
		if at := act.Ends(microTime(now)); at != nil {
			ends = at.UnixMicro()
		}
		actor := actorOf(store.Act{Actor: act.Actor})
		if _, err := c.exec("pause", act.Sink, string(act.Kind), act.Name, act.Reason, actor, ends); err != nil {
			return nil, err
		}
		all, err := c.pausesOf(act.Sink, act.Kind, act.Name)
		if len(all) > 0 {
			made = all[0]
		}
		return map[string]any{"kind": act.Kind, "name": act.Name, "expires_at": made.ExpiresAt}, err
	})
	return made, err
}

// Resume ends a pause. The running relay takes up what it held within a second.
func (a *Admin) Resume(ctx context.Context, act store.PauseAct) error {
	op := "resume " + string(act.Kind)
	return a.pausing(ctx, op, act, func(c *call) (map[string]any, error) {
		if err := act.Check(op, time.Time{}); err != nil {
			return nil, err
		}
		if err := c.checkSink(act.Sink); err != nil {
			return nil, err
		}
		n, err := c.exec("resume", act.Sink, string(act.Kind), act.Name)
		if err == nil && n == 0 {
			err = act.NotPaused(op)
		}
		return map[string]any{"kind": act.Kind, "name": act.Name}, err
	})
}

// pausing runs f in one transaction and audits it; a dry run undoes all of it.
func (a *Admin) pausing(ctx context.Context, op string, act store.PauseAct, f func(c *call) (detail map[string]any, err error)) error {
	action, _, _ := strings.Cut(op, " ")
	return a.audited(ctx, action, op, store.Act{Sink: act.Sink, Actor: act.Actor, Reason: act.Reason, DryRun: act.DryRun}, f)
}
