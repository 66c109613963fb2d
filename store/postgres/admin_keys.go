package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// keyPlace is where a list of keys goes on.
type keyPlace struct {
	sink, key string
	partition int32
}

func (p keyPlace) token() string { return fmt.Sprintf("%s/%d/%s", p.sink, p.partition, p.key) }

func checkKeys(op string, f store.KeyFilter) (after keyPlace, err error) {
	bad := func(detail string) (keyPlace, error) {
		return keyPlace{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Op: op, Detail: detail}
	}
	if f.Limit < 0 || f.Limit > maxLimit {
		return bad(fmt.Sprintf("limit %d is not from 1 to %d", f.Limit, maxLimit))
	}
	if strings.ContainsRune(f.Sink+f.After, 0) {
		return bad("a text has a NUL byte")
	}
	after.partition = -1
	if f.After == "" {
		return after, nil
	}
	words := strings.SplitN(f.After, "/", 3)
	if len(words) != 3 {
		return bad("after is not the next of a list")
	}
	n, err := strconv.ParseInt(words[1], 10, 32)
	if err != nil {
		return bad("after is not the next of a list")
	}
	return keyPlace{sink: words[0], partition: int32(n), key: words[2]}, nil
}

// Keys lists keys that have parked messages, or dead letters that block. It goes from key to key along indexes: what it
// costs does not depend on how many messages a key has waiting.
func (a *Admin) Keys(ctx context.Context, f store.KeyFilter) (list store.KeyList, err error) {
	const op = "list keys"
	after, err := checkKeys(op, f)
	if err != nil {
		return list, err
	}
	limit := cmp.Or(f.Limit, defaultLimit)
	err = a.read(ctx, op, func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, f.Sink); err != nil {
			return err
		}
		sinks := []string{f.Sink}
		if f.Sink == "" {
			if sinks, err = collect(ctx, tx, a.sql["sinks"], nil, pgx.RowTo[string]); err != nil {
				return err
			}
		}
		found, err := a.findKeys(ctx, tx, sinks, after, limit+1, f.Blocked)
		if err != nil {
			return err
		}
		if len(found) > limit {
			found = found[:limit]
			list.Next = found[limit-1].token()
		}
		list.Keys, err = a.keyInfos(ctx, tx, found, store.MostWaitingInList)
		return err
	})
	return list, err
}

// findKeys goes through the sinks, which come in the order of their names, from a place on.
func (a *Admin) findKeys(ctx context.Context, tx pgx.Tx, sinks []string, after keyPlace, most int, blocked bool) (found []keyPlace, err error) {
	reached := after.sink == ""
	for _, sink := range sinks {
		from := keyPlace{partition: -1}
		if sink == after.sink {
			from, reached = after, true
		}
		if !reached || len(found) == most {
			continue
		}
		keys, err := collect(ctx, tx, a.sql["keys"], []any{sink, from.partition, from.key, most - len(found), blocked},
			func(row pgx.CollectableRow) (p keyPlace, err error) {
				p.sink = sink
				return p, row.Scan(&p.partition, &p.key)
			})
		if err != nil {
			return nil, err
		}
		found = append(found, keys...)
	}
	return found, nil
}

// Key says how a key stands in a sink, or in each.
func (a *Admin) Key(ctx context.Context, sink, key string) (all []store.KeyInfo, err error) {
	op := fmt.Sprintf("show key %q", key)
	err = a.read(ctx, op, func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, sink); err != nil {
			return err
		}
		var part int32
		var known bool
		if key != "" && !strings.ContainsRune(key, 0) {
			if err := tx.QueryRow(ctx, a.sql["key_part"], key, a.scan).Scan(&part, &known); err != nil {
				return err
			}
			sinks := []string{sink}
			if sink == "" {
				if sinks, err = collect(ctx, tx, a.sql["sinks"], nil, pgx.RowTo[string]); err != nil {
					return err
				}
			}
			places := make([]keyPlace, len(sinks))
			for i, name := range sinks {
				places[i] = keyPlace{name, key, part}
			}
			if all, err = a.keyInfos(ctx, tx, places, store.MostWaiting); err != nil {
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
			Code: store.ErrNotFound.Code, Op: op, Detail: "nothing is known of it",
			Hint: "keys are compared whole; retention removes what was published",
		}
	})
	return all, err
}

// keyInfos describes keys, in their order; those of one sink stand together.
func (a *Admin) keyInfos(ctx context.Context, tx pgx.Tx, places []keyPlace, most int64) (all []store.KeyInfo, err error) {
	pauses, err := a.pauses(ctx, tx, "")
	if err != nil {
		return nil, err
	}
	for len(places) > 0 {
		n := 0
		for n < len(places) && places[n].sink == places[0].sink {
			n++
		}
		infos, err := a.sinkKeys(ctx, tx, places[:n], most)
		if err != nil {
			return nil, err
		}
		all, places = append(all, infos...), places[n:]
	}
	for i := range all {
		all[i].MarkPaused(pauses)
	}
	return all, nil
}

func (a *Admin) sinkKeys(ctx context.Context, tx pgx.Tx, places []keyPlace, most int64) ([]store.KeyInfo, error) {
	parts, keys := make([]int32, len(places)), make([]string, len(places))
	for i, p := range places {
		parts[i], keys[i] = p.partition, p.key
	}
	return collect(ctx, tx, a.sql["key_info"], []any{places[0].sink, parts, keys, most}, func(row pgx.CollectableRow) (k store.KeyInfo, err error) {
		var (
			no             int
			oldest, due    nullTime
			head, dead     store.KeyBlock
			headID, dead16 *[16]byte
		)
		err = row.Scan(&no, &k.Waiting, &k.Scheduled, &oldest, &headID, &head.Topic, &head.Reason, &head.Attempts, &due, &head.Code, &head.Error,
			&dead16, &dead.Topic, &dead.Attempts, &dead.Code, &dead.Error, &k.DeadCount)
		if err != nil {
			return k, err
		}
		k.Sink, k.Key, k.Partition = places[no].sink, places[no].key, int(places[no].partition)
		if k.Waiting > most {
			k.Waiting, k.WaitingAtLeast = most, true
		}
		if !oldest.IsZero() {
			k.Oldest = &oldest.Time
		}
		if !due.IsZero() {
			head.DueAt = &due.Time
		}
		if headID != nil {
			head.ID = outbox.ID(*headID)
			k.Head = &head
		}
		if dead16 != nil {
			dead.ID = outbox.ID(*dead16)
			k.Dead = &dead
		}
		return k, nil
	})
}
