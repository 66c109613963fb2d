package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// keyPlace is a key of a sink.
type keyPlace struct{ sink, key string }

func checkKeys(f store.KeyFilter) (after keyPlace, err error) {
	bad := func(detail string) (keyPlace, error) {
		return keyPlace{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Detail: detail}
	}
	sink, key, found := strings.Cut(f.After, "/0/")
	switch {
	case f.Limit < 0 || f.Limit > maxLimit:
		return bad(fmt.Sprintf("limit %d is not from 1 to %d", f.Limit, maxLimit))
	case f.After != "" && !found:
		return bad("after is not the next of a list")
	case strings.ContainsRune(f.Sink+f.After, 0):
		return bad("a text contains NUL")
	}
	return keyPlace{sink, key}, nil
}

// Keys lists keys that have parked messages, or dead letters that block. It goes from key to key along indexes: what it
// costs does not depend on how many messages a key has waiting.
func (a *Admin) Keys(ctx context.Context, f store.KeyFilter) (list store.KeyList, err error) {
	err = a.read(ctx, "list keys", f.Sink, func(c *call) error {
		after, err := checkKeys(f)
		if err != nil {
			return err
		}
		sinks, err := c.sinksOr(f.Sink)
		if err != nil {
			return err
		}
		limit := cmp.Or(f.Limit, defaultLimit)
		found, err := c.findKeys(sinks, after, limit+1, f.Blocked)
		if err != nil {
			return err
		}
		if len(found) > limit {
			found = found[:limit]
			list.Next = found[limit-1].sink + "/0/" + found[limit-1].key
		}
		list.Keys, err = c.keyInfos(found, store.MostWaitingInList)
		return err
	})
	return list, err
}

// sinksOr is the sink, or all of them.
func (c *call) sinksOr(sink string) (sinks []string, err error) {
	if sink != "" {
		return []string{sink}, nil
	}
	err = c.query("sinks", nil, func(rows *sql.Rows) (bool, error) {
		var name string
		err := rows.Scan(&name)
		sinks = append(sinks, name)
		return false, err
	})
	return sinks, err
}

// findKeys goes through the sinks, which come in the order of their names, from a place on.
func (c *call) findKeys(sinks []string, after keyPlace, most int, blocked bool) (found []keyPlace, err error) {
	for _, sink := range sinks {
		from := ""
		if sink == after.sink {
			from = after.key
		}
		if sink < after.sink || len(found) == most {
			continue
		}
		err := c.query("keys", []any{sink, from, most - len(found), blocked}, func(rows *sql.Rows) (bool, error) {
			at := keyPlace{sink: sink}
			err := rows.Scan(&at.key)
			found = append(found, at)
			return false, err
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Key says how a key stands in a sink, or in each.
func (a *Admin) Key(ctx context.Context, sink, key string) (all []store.KeyInfo, err error) {
	err = a.read(ctx, fmt.Sprintf("show key %q", key), sink, func(c *call) error {
		var known bool
		if key != "" {
			sinks, err := c.sinksOr(sink)
			if err != nil {
				return err
			}
			if _, err := c.row("key_known", []any{key, a.scan}, &known); err != nil {
				return err
			}
			places := make([]keyPlace, len(sinks))
			for i, name := range sinks {
				places[i] = keyPlace{name, key}
			}
			if all, err = c.keyInfos(places, store.MostWaiting); err != nil {
				return err
			}
		}
		for i := range all {
			known = known || all[i].Blocked() || all[i].Scheduled > 0
		}
		if known {
			return nil
		}
		all = nil
		return &outbox.Error{
			Code: store.ErrNotFound.Code, Detail: "nothing is known of it",
			Hint: "keys are compared whole; retention removes what was published",
		}
	})
	return all, err
}

func (c *call) keyInfos(places []keyPlace, most int64) (all []store.KeyInfo, err error) {
	pauses, err := c.pauses("")
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		k, err := c.keyInfo(p, most)
		if err != nil {
			return nil, err
		}
		k.MarkPaused(pauses)
		all = append(all, k)
	}
	return all, nil
}

func (c *call) keyInfo(p keyPlace, most int64) (k store.KeyInfo, err error) {
	k.Sink, k.Key = p.sink, p.key
	if _, err := c.row("key_counts", []any{p.sink, p.key, most}, &k.Waiting, &k.Scheduled, &k.DeadCount); err != nil {
		return k, err
	}
	if k.Waiting > most {
		k.Waiting, k.WaitingAtLeast = most, true
	}
	var b store.KeyBlock
	var id string
	var written int64
	var due sql.NullInt64
	found, err := c.row("key_head", []any{p.sink, p.key}, &id, &b.Topic, &b.Reason, &b.Attempts, &due, &b.Code, &b.Error, &written)
	if err != nil {
		return k, err
	}
	if found {
		head := b
		if due.Valid {
			at := microTime(due.Int64)
			head.DueAt = &at
		}
		if head.ID, err = outbox.ParseID(id); err != nil {
			return k, err
		}
		k.Head = &head
		older(&k, written)
	}
	b = store.KeyBlock{}
	found, err = c.row("key_dead", []any{p.sink, p.key}, &id, &b.Topic, &b.Attempts, &b.Code, &b.Error, &written)
	if err != nil || !found {
		return k, err
	}
	b.ID, err = outbox.ParseID(id)
	k.Dead = &b
	older(&k, written)
	return k, err
}

// older notes when a message of the key was written, if it is the oldest.
func older(k *store.KeyInfo, written int64) {
	if at := microTime(written); k.Oldest == nil || at.Before(*k.Oldest) {
		k.Oldest = &at
	}
}
