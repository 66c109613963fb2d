package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// spot is where a list goes on: it is ordered by transaction, seq and sink, the highest first; of one key by seq.
type spot struct {
	tx   uint64
	seq  int64
	sink string
}

func (a spot) compare(b spot) int {
	return cmp.Or(cmp.Compare(a.tx, b.tx), cmp.Compare(a.seq, b.seq), cmp.Compare(a.sink, b.sink))
}

func (a spot) String() string { return fmt.Sprintf("%d.%d.%s", a.tx, a.seq, a.sink) }

func parseSpot(s string) (at spot, err error) {
	tx, rest, _ := strings.Cut(s, ".")
	seq, sinkName, found := strings.Cut(rest, ".")
	if !found {
		return at, strconv.ErrSyntax
	}
	if at.tx, err = strconv.ParseUint(tx, 10, 64); err == nil {
		at.seq, err = strconv.ParseInt(seq, 10, 64)
	}
	at.sink = sinkName
	return at, err
}

// query is a filter that was checked.
type query struct {
	store.Filter
	after spot
}

func newQuery(f store.Filter, op string) (q query, err error) {
	bad := func(detail string) (query, error) {
		return query{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Op: op, Detail: detail}
	}
	states := []store.State{"", store.StatePending, store.StateParked, store.StatePublished, store.StateDead, store.StateDiscarded}
	reasons := []store.Reason{"", store.ReasonRetry, store.ReasonScheduled, store.ReasonBehind, store.ReasonPaused}
	switch {
	case !slices.Contains(states, f.State):
		return bad(fmt.Sprintf("no message is listed by state %q", f.State))
	case !slices.Contains(reasons, f.Reason):
		return bad(fmt.Sprintf("%q is no reason", f.Reason))
	case f.Limit < 0 || f.Limit > 10_000:
		return bad(fmt.Sprintf("limit %d is not from 1 to 10,000", f.Limit))
	case f.Attempts < 0:
		return bad("attempts are counted from 0")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return bad("since is not before until")
	}
	q = query{Filter: f, after: spot{tx: math.MaxUint64, seq: math.MaxInt64}}
	if f.After != "" {
		if q.after, err = parseSpot(f.After); err != nil {
			return bad("after is not the next of a list")
		}
	}
	q.Limit = cmp.Or(q.Limit, 100)
	return q, nil
}

// fields says whether a message has what the filter asks of its own fields.
func (q query) fields(r *row, at time.Time) bool {
	for _, f := range [...][2]string{
		{q.Topic, r.Topic},
		{q.Type, r.Type},
		{q.Key, r.Key},
		{q.EventID, r.EventID},
		{q.CorrelationID, r.CorrelationID},
		{q.Scope, r.Scope},
	} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	return (q.ID.IsZero() || q.ID == r.ID) && (q.Since.IsZero() || !at.Before(q.Since)) && (q.Until.IsZero() || at.Before(q.Until))
}

// exceptional reports whether only parked and dead messages can be meant.
func (q query) exceptional() bool {
	return q.State == store.StateParked || q.State == store.StateDead || q.State == "" && (q.Reason != "" || q.Code != "" || q.Attempts > 0)
}

// states says whether one of the sinks' states is what the filter asks for.
func (q query) states(states []store.SinkState) bool {
	if q.State == "" && q.Reason == "" && q.Code == "" && q.Attempts == 0 {
		return true
	}
	return slices.ContainsFunc(states, func(s store.SinkState) bool {
		return (q.State == "" || q.State == s.State) && (q.Reason == "" || q.Reason == s.Reason) &&
			(q.Code == "" || q.Code == s.LastCode) && q.Attempts <= s.Attempts
	})
}

// Messages lists, newest first.
func (a *Admin) Messages(ctx context.Context, f store.Filter) (store.MessageList, error) {
	q, err := newQuery(f, "list messages")
	if err != nil {
		return store.MessageList{}, err
	}
	only, err := a.begin(ctx, "list messages", f.Sink)
	if err != nil {
		return store.MessageList{}, err
	}
	defer a.db.mu.Unlock()
	place := func(r *row) spot {
		if q.Key != "" {
			return spot{seq: r.Seq}
		}
		return spot{tx: r.tx, seq: r.Seq}
	}
	var rows []*row
	for _, log := range a.db.state.logs {
		for _, r := range log {
			if place(r).compare(q.after) < 0 && q.fields(r, r.CreatedAt) {
				rows = append(rows, r)
			}
		}
	}
	for _, r := range a.db.state.ids { // copies that are parked or dead, without their row in the log
		if r.gone && q.exceptional() && a.db.state.kept(r) && place(r).compare(q.after) < 0 && q.fields(r, r.CreatedAt) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int { return place(b).compare(place(a)) })
	var list store.MessageList
	var last spot
	for _, r := range rows {
		m := a.db.message(r, only)
		if !q.states(m.States) {
			continue
		}
		if len(list.Messages) == q.Limit {
			list.Next = last.String()
			break
		}
		m.Payload = nil
		list.Messages = append(list.Messages, m)
		last = place(r)
	}
	return list, nil
}

// Message returns one message, whole.
func (a *Admin) Message(ctx context.Context, id outbox.ID) (store.MessageInfo, error) {
	if _, err := a.begin(ctx, "show message", ""); err != nil {
		return store.MessageInfo{}, err
	}
	defer a.db.mu.Unlock()
	r := a.db.state.committed(id)
	if r == nil {
		return store.MessageInfo{}, notFound("show message", fmt.Sprintf("there is no message %s", id))
	}
	m := a.db.message(r, nil)
	for i := range m.States {
		m.States[i] = a.db.state.sink(m.States[i].Sink).when(r, m.States[i])
	}
	store.MarkPaused(&m, a.db.pauses(nil))
	return m, nil
}

// message describes a row, with its state in one sink or in all.
func (db *DB) message(r *row, only *sink) store.MessageInfo {
	m := store.MessageInfo{Record: r.Record, PayloadBytes: len(r.Payload), Tx: r.tx}
	m.Payload = bytes.Clone(r.Payload)
	for _, k := range db.state.sinks {
		if (only == nil || only == k) && k.takes(r) {
			m.States = append(m.States, k.stateOf(r))
		}
	}
	return m
}

// Dead lists dead letters, newest first.
func (a *Admin) Dead(ctx context.Context, f store.Filter) (store.DeadList, error) {
	q, err := newQuery(f, "list dead letters")
	if err != nil {
		return store.DeadList{}, err
	}
	only, err := a.begin(ctx, "list dead letters", f.Sink)
	if err != nil {
		return store.DeadList{}, err
	}
	defer a.db.mu.Unlock()
	var list store.DeadList
	if q.State != "" && q.State != store.StateDead || q.Reason != "" {
		return list, nil
	}
	at := map[outbox.ID]spot{}
	place := func(d *store.DeadInfo) spot { return spot{tx: at[d.ID].tx, seq: d.Seq, sink: d.Sink} }
	for _, k := range a.db.state.sinks {
		if only != nil && only != k {
			continue
		}
		for _, d := range k.dead {
			here := spot{d.row.tx, d.row.Seq, k.name}
			if here.compare(q.after) < 0 && q.fields(d.row, d.lastFailure) && d.attempts >= q.Attempts && (q.Code == "" || q.Code == d.code) {
				at[d.row.ID] = here
				list.Dead = append(list.Dead, k.describe(d, !q.ID.IsZero()))
			}
		}
	}
	slices.SortFunc(list.Dead, func(a, b store.DeadInfo) int { return place(&b).compare(place(&a)) })
	if len(list.Dead) > q.Limit {
		list.Dead = list.Dead[:q.Limit]
		list.Next = place(&list.Dead[q.Limit-1]).String()
	}
	return list, nil
}

func (k *sink) describe(d *dead, whole bool) store.DeadInfo {
	info := store.DeadInfo{
		Record: d.row.Record, Sink: k.name, PayloadBytes: len(d.row.Payload), Code: d.code, Error: d.text, Attempts: d.attempts,
		FirstFailure: d.firstFailure, LastFailure: d.lastFailure, Relay: d.relay, Blocks: d.blocks,
	}
	info.Payload = nil
	if whole {
		info.Payload = bytes.Clone(d.row.Payload)
		info.Tries = slices.Clone(k.attempts[d.row.ID])
		if d.blocks {
			l := k.parts[d.row.Partition].keys[d.row.Key]
			info.Behind = len(l.rows) + len(l.scheduled)
		}
	}
	return info
}
