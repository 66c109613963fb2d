package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

var errDryRun = errors.New("dry run")

// doing is what an act does; key is the line that goes on.
type doing func(c *call) (key string, detail map[string]any, err error)

// act is an act on one message.
func (a *Admin) act(ctx context.Context, action string, act store.Act, needsReason bool, f doing) error {
	return a.acts(ctx, action, action+" message "+act.ID.String(), act, needsReason, f)
}

// acts runs f in one transaction, audits it, and lets the key's line go on; a dry run undoes all of it.
func (a *Admin) acts(ctx context.Context, action, op string, act store.Act, needsReason bool, f doing) error {
	if needsReason && strings.TrimSpace(act.Reason) == "" {
		return &outbox.Error{
			Code: store.ErrReasonRequired.Code, Op: op, Detail: store.ErrReasonRequired.Detail, Hint: "say why: the audit keeps it",
		}
	}
	return a.audited(ctx, action, op, act, func(c *call) (map[string]any, error) {
		if err := c.checkSink(act.Sink); err != nil {
			return nil, err
		}
		key, detail, err := f(c)
		if err != nil {
			return nil, err
		}
		return detail, c.promote(act.Sink, key)
	})
}

// audited runs f in one transaction and audits it; a dry run undoes all of it.
func (a *Admin) audited(ctx context.Context, action, op string, act store.Act, f func(c *call) (detail map[string]any, err error)) error {
	id := ""
	if !act.ID.IsZero() {
		id = act.ID.String()
	}
	err := a.use(ctx, op, func(c *call) error {
		return c.write(func() error {
			detail, err := f(c)
			if err != nil {
				return err
			}
			if act.DryRun {
				return errDryRun
			}
			text, err := json.Marshal(detail)
			if err != nil {
				return err
			}
			_, err = c.exec("audit", actorOf(act), action, act.Sink, id, act.Reason, string(text))
			return err
		})
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

// Requeue makes a dead letter the parked head of its key again, due now: same id, same place, attempts go on and the
// budget starts again.
func (a *Admin) Requeue(ctx context.Context, act store.Act, acceptReorder bool) error {
	return a.act(ctx, "requeue", act, false, func(c *call) (key string, detail map[string]any, err error) {
		id := act.ID.String()
		var code string
		var seq, place, later int64
		var blocks bool
		found, err := c.row("corpse", []any{act.Sink, id}, &key, &code, &seq, &place, &blocks)
		if err == nil && !found {
			err = c.notDead(id)
		}
		if err == nil && key != "" {
			later, err = c.publishedAfter(act.Sink, key, max(seq, place))
		}
		if err != nil {
			return key, nil, err
		}
		if later > 0 && !acceptReorder {
			return key, nil, &outbox.Error{
				Code: store.ErrReorderRefused.Code, Detail: fmt.Sprintf("at least %d later message(s) of its key were published", later),
				Hint: "accept the reorder (--accept-reorder) to publish it after them",
			}
		}
		if _, err = c.exec("revive", act.Sink, id); err == nil {
			_, err = c.exec("remove_dead", act.Sink, id)
		}
		return key, map[string]any{"published_later": later, "code": code}, err
	})
}

// publishedAfter counts the later messages of a key that the sink takes and has published.
func (c *call) publishedAfter(sink, key string, place int64) (later int64, err error) {
	takes, err := c.selection(sink)
	if err != nil {
		return 0, err
	}
	err = c.query("published_after", []any{sink, key, place}, func(rows *sql.Rows) (bool, error) {
		var topic string
		var n int64
		err := rows.Scan(&topic, &n)
		if takes.Match(topic) {
			later += n
		}
		return false, err
	})
	return later, err
}

// notDead is why a message that has no dead letter cannot be requeued.
func (c *call) notDead(id string) error {
	var exists bool
	if _, err := c.row("exists_anywhere", []any{id}, &exists); err != nil {
		return err
	}
	if !exists {
		return &outbox.Error{Code: store.ErrNotFound.Code, Detail: "there is no message " + id}
	}
	return &outbox.Error{
		Code: store.ErrStateConflict.Code, Detail: "message " + id + " is not a dead letter",
		Hint: "look at its state first: it may have changed meanwhile",
	}
}

// Discard removes a dead or parked message for good, and lets its key go on.
func (a *Admin) Discard(ctx context.Context, act store.Act) error {
	return a.act(ctx, "discard", act, true, func(c *call) (key string, detail map[string]any, err error) {
		id := act.ID.String()
		var code, topic, typ string
		var seq int64
		found, err := c.row("waiting", []any{act.Sink, id}, &key, &code, &seq, &topic, &typ)
		if err != nil {
			return key, nil, err
		}
		if !found {
			if err := c.notDead(id); outbox.CodeOf(err) != store.ErrStateConflict.Code {
				return key, nil, err
			}
			return key, nil, &outbox.Error{Code: store.ErrStateConflict.Code, Detail: "message " + id + " is neither dead nor parked"}
		}
		was := "parked"
		n, err := c.exec("remove_parked", act.Sink, id)
		if err == nil && n == 0 {
			was = "dead"
			_, err = c.exec("remove_dead", act.Sink, id)
		}
		return key, map[string]any{"was": was, "code": code, "topic": topic, "type": typ, "key": key, "seq": seq}, err
	})
}
