package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Admin answers what people ask of the database, and acts for them.
type Admin struct{ db *DB }

var (
	_ store.Admin   = (*Admin)(nil)
	_ store.Tracker = (*Admin)(nil)
)

// begin takes the lock and finds the sink; an empty name is no sink where that is allowed.
func (a *Admin) begin(ctx context.Context, op, sinkName string) (*sink, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.db.mu.Lock()
	if sinkName == "" {
		return nil, nil
	}
	k := a.db.state.sink(sinkName)
	if k == nil {
		a.db.mu.Unlock()
		return nil, &outbox.Error{Code: store.ErrNotFound.Code, Op: op, Detail: fmt.Sprintf("there is no sink %q", sinkName)}
	}
	return k, nil
}

// Requeue makes a dead letter the parked head of its key again.
func (a *Admin) Requeue(ctx context.Context, act store.Act, acceptReorder bool) error {
	const op = "requeue"
	k, err := a.begin(ctx, op, act.Sink)
	if err != nil {
		return err
	}
	defer a.db.mu.Unlock()
	if k == nil {
		return notFound(op, "a sink is required")
	}
	d := k.dead[act.ID]
	if d == nil {
		return a.db.notDead(op, act.ID)
	}
	if later := a.db.publishedAfter(k, d); later > 0 && !acceptReorder {
		return &outbox.Error{
			Code: store.ErrReorderRefused.Code, Op: op,
			Detail: fmt.Sprintf("at least %d later messages of its key were published", later),
			Hint:   "accept the reorder, or discard it",
		}
	}
	if act.DryRun {
		return nil
	}
	now := a.db.now()
	k.exhume(d)
	k.add(&parked{
		row: d.row, place: d.place, reason: store.ReasonRetry, attempts: d.attempts, before: d.attempts, due: now,
		firstFailure: d.firstFailure, lastFailure: d.lastFailure, code: d.code, text: d.text,
	})
	k.parts[d.row.Partition].normalise(d.row.Key, now)
	a.audit(act, op, now)
	return nil
}

// Discard removes a dead or parked message for good.
func (a *Admin) Discard(ctx context.Context, act store.Act) error {
	const op = "discard"
	if strings.TrimSpace(act.Reason) == "" {
		return &outbox.Error{Code: store.ErrReasonRequired.Code, Op: op, Detail: store.ErrReasonRequired.Detail}
	}
	k, err := a.begin(ctx, op, act.Sink)
	if err != nil {
		return err
	}
	defer a.db.mu.Unlock()
	if k == nil {
		return notFound(op, "a sink is required")
	}
	p, d := k.parked[act.ID], k.dead[act.ID]
	if p == nil && d == nil {
		return notFound(op, fmt.Sprintf("there is no dead or parked message %s", act.ID))
	}
	if act.DryRun {
		return nil
	}
	now := a.db.now()
	var r *row
	if p != nil {
		r = p.row
		k.drop(p)
	} else {
		r = d.row
		k.exhume(d)
	}
	k.parts[r.Partition].normalise(r.Key, now)
	k.discarded[r.ID] = struct{}{}
	a.audit(act, op, now)
	return nil
}

func (a *Admin) audit(act store.Act, action string, now time.Time) {
	a.db.state.audit = append(a.db.state.audit, AuditLine{
		At: now, Actor: act.Actor, Action: action, Sink: act.Sink, ID: act.ID, Reason: act.Reason,
	})
}

func notFound(op, detail string) error {
	return &outbox.Error{Code: store.ErrNotFound.Code, Op: op, Detail: detail}
}

// notDead is why a message that has no dead letter cannot be requeued.
func (db *DB) notDead(op string, id outbox.ID) error {
	if db.state.committed(id) == nil {
		return notFound(op, fmt.Sprintf("there is no message %s", id))
	}
	return &outbox.Error{Code: store.ErrStateConflict.Code, Op: op, Detail: fmt.Sprintf("message %s is not a dead letter", id)}
}

// publishedAfter counts the later messages of a dead letter's key that went out.
func (db *DB) publishedAfter(k *sink, d *dead) int {
	if d.row.Key == "" {
		return 0
	}
	n := 0
	log := queue(db.state.logs[d.row.Partition])
	for _, r := range log[log.upTo(d.row.Seq):] {
		if r.Key == d.row.Key && k.stateOf(r).State == store.StatePublished {
			n++
		}
	}
	return n
}

// committed returns the row with this id if its transaction was committed.
func (s *state) committed(id outbox.ID) *row {
	r := s.known(id)
	if r == nil {
		return nil
	}
	if _, open := s.open[r.tx]; open {
		return nil
	}
	return r
}

// stateOf says where a committed message stands in the sink.
func (k *sink) stateOf(r *row) store.SinkState {
	s := store.SinkState{Sink: k.name, State: store.StatePublished}
	p, d := k.parked[r.ID], k.dead[r.ID]
	_, isDiscarded := k.discarded[r.ID]
	switch {
	case p != nil:
		s.State, s.Reason, s.Attempts, s.LastCode, s.LastError = store.StateParked, p.reason, p.attempts, p.code, p.text
		if !p.due.IsZero() {
			if due := p.due; due.Before(forever) {
				s.DueAt = &due
			}
		}
	case d != nil:
		s.State, s.Attempts, s.LastCode, s.LastError = store.StateDead, d.attempts, d.code, d.text
	case isDiscarded:
		s.State = store.StateDiscarded
	case k.parts[r.Partition].unsettled(r):
		s.State = store.StatePending
	}
	return s
}

// State answers where a receipt's message stands. A transaction that is still open is pending; a committed one without
// the message, or one that the database does not know, is unknown.
func (a *Admin) State(ctx context.Context, sinkName string, receipt outbox.Receipt) (store.State, error) {
	k, err := a.begin(ctx, "state of a receipt", sinkName)
	if err != nil {
		return "", err
	}
	defer a.db.mu.Unlock()
	if k == nil {
		return "", notFound("state of a receipt", "a sink is required")
	}
	s := &a.db.state
	if r := s.committed(receipt.ID); r != nil && r.Seq == receipt.Seq && r.tx == receipt.Tx {
		if !k.takes(r) {
			return store.StateUnknown, nil
		}
		return k.stateOf(r).State, nil
	}
	_, aborted := s.aborted[receipt.Tx]
	_, open := s.open[receipt.Tx]
	switch {
	case aborted:
		return store.StateRolledBack, nil
	case open:
		return store.StatePending, nil
	}
	return store.StateUnknown, nil
}

// Partitions returns the partitions of a sink, or of all sinks.
func (a *Admin) Partitions(ctx context.Context, sinkName string) ([]store.PartitionInfo, error) {
	only, err := a.begin(ctx, "list partitions", sinkName)
	if err != nil {
		return nil, err
	}
	defer a.db.mu.Unlock()
	var all []store.PartitionInfo
	for _, k := range a.db.state.sinks {
		if only != nil && only != k {
			continue
		}
		for _, p := range k.parts {
			info := store.PartitionInfo{Sink: k.name, Partition: p.id, Epoch: p.epoch, Seq: p.passed, FreedAt: p.freedAt}
			if p.owner != nil {
				info.Relay = p.owner.name
			}
			all = append(all, info)
		}
		first := len(all) - len(k.parts)
		for _, r := range k.parked {
			all[first+r.row.Partition].Parked++
		}
	}
	return all, nil
}

// Relays returns the registered relays by name.
func (a *Admin) Relays(ctx context.Context) ([]store.RelayInfo, error) {
	if _, err := a.begin(ctx, "list relays", ""); err != nil {
		return nil, err
	}
	defer a.db.mu.Unlock()
	now := a.db.now()
	var all []store.RelayInfo
	for _, r := range a.db.state.relays {
		info := store.RelayInfo{
			ID: r.id, Name: r.name, Host: r.host, Version: r.version, PID: r.pid, Sinks: slices.Clone(r.sinks),
			Live: r.ends.After(now), StartedAt: r.started, HeartbeatAt: r.heartbeat, LeasedUntil: r.ends, Lease: r.lease,
		}
		for _, k := range a.db.state.sinks {
			for _, p := range k.parts {
				if p.owner == r {
					info.Partitions++
				}
			}
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b store.RelayInfo) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Status returns the outbox at a glance.
func (a *Admin) Status(ctx context.Context) (store.Status, error) {
	if _, err := a.begin(ctx, "status", ""); err != nil {
		return store.Status{}, err
	}
	defer a.db.mu.Unlock()
	now := a.db.now()
	status := store.Status{Info: a.db.info(), Now: now}
	for _, r := range a.db.state.relays {
		if r.ends.After(now) {
			status.RelaysLive++
		}
	}
	for _, k := range a.db.state.sinks {
		s := k.status(now)
		s.Pauses = k.endPauses(now)
		s.RetentionHeld = a.db.state.held(k, now)
		for _, r := range a.db.state.relays {
			if settings, serves := r.settings[k.name]; serves && r.ends.After(now) {
				s.Serving = append(s.Serving, store.Serving{Relay: r.name, Settings: settings})
			}
		}
		slices.SortFunc(s.Serving, func(a, b store.Serving) int { return strings.Compare(a.Relay, b.Relay) })
		status.Sinks = append(status.Sinks, s)
	}
	status.Unrouted, status.UnroutedOf = a.db.state.unrouted()
	return status, nil
}

// unrouted counts the topics of recent messages that no sink takes.
func (s *state) unrouted() (topics []store.TopicCount, of int64) {
	if len(s.sinks) == 0 || slices.ContainsFunc(s.sinks, func(k *sink) bool { return k.selection.All() }) {
		return nil, 0
	}
	var rows []*row
	for _, log := range s.logs {
		rows = append(rows, log...)
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Or(cmp.Compare(b.tx, a.tx), cmp.Compare(b.Seq, a.Seq)) })
	rows = rows[:min(len(rows), 100_000)]
	counts := map[string]int64{}
	for _, r := range rows {
		if !slices.ContainsFunc(s.sinks, func(k *sink) bool { return k.selection.Match(r.Topic) }) {
			counts[r.Topic]++
		}
	}
	for topic, n := range counts {
		topics = append(topics, store.TopicCount{Topic: topic, Messages: n})
	}
	slices.SortFunc(topics, func(a, b store.TopicCount) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Topic, b.Topic))
	})
	return topics[:min(len(topics), 10)], int64(len(rows))
}

// RemoveSink forgets a sink with all that it has.
func (a *Admin) RemoveSink(ctx context.Context, act store.Act) error {
	const op = "remove sink"
	if act.Reason == "" {
		return &outbox.Error{Code: store.ErrReasonRequired.Code, Op: op, Detail: store.ErrReasonRequired.Detail}
	}
	k, err := a.begin(ctx, op, act.Sink)
	if err != nil {
		return err
	}
	defer a.db.mu.Unlock()
	if k == nil {
		return notFound(op, "a sink is required")
	}
	now := a.db.now()
	for _, r := range a.db.state.relays {
		if slices.Contains(r.sinks, k.name) && r.ends.After(now) {
			return &outbox.Error{Code: store.ErrStateConflict.Code, Op: op, Detail: "relay " + r.name + " serves sink " + k.name, Hint: "stop the relays that serve it, or take the sink out of their configuration"}
		}
	}
	if act.DryRun {
		return nil
	}
	a.db.takeOverExpired(nil, now)
	a.db.state.sinks = slices.DeleteFunc(a.db.state.sinks, func(other *sink) bool { return other == k })
	a.audit(act, op, now)
	return nil
}

func (k *sink) status(now time.Time) store.SinkStatus {
	s := store.SinkStatus{Name: k.name, Selection: k.selection, CreatedAt: k.created, SeenAt: k.seen, Parked: map[store.Reason]int64{}, Dead: int64(len(k.dead)), Published: k.published}
	for _, p := range k.parts {
		s.Backlog += int64(k.backlog(p))
		if oldest := k.oldest(p); !oldest.IsZero() {
			s.Lag = max(s.Lag, now.Sub(oldest))
		}
		if p.owner != nil {
			s.PartitionsOwned++
		} else {
			s.PartitionsFree++
		}
		for _, l := range p.keys {
			if l.blocked(now) {
				s.BlockedKeys++
			}
		}
	}
	for _, r := range k.parked {
		s.Parked[r.reason]++
	}
	for _, c := range k.cursors {
		s.Published += c.published
		if c.settledAt.After(s.LastSettle) {
			s.LastSettle = c.settledAt
		}
	}
	s.Rate = k.rate(now)
	if len(k.cursors) > 0 {
		return s
	}
	for _, p := range k.parts {
		if p.freedAt.After(s.LastSettle) {
			s.LastSettle = p.freedAt
		}
	}
	return s
}

// oldest is when the oldest message without an outcome was written.
func (k *sink) oldest(p *part) (at time.Time) {
	look := func(rows []*row) {
		for _, r := range rows {
			if !k.takes(r) {
				continue
			}
			if at.IsZero() || r.CreatedAt.Before(at) {
				at = r.CreatedAt
			}
		}
	}
	look(p.unread)
	for _, r := range p.reads {
		look(r.rows[r.n:])
	}
	return at
}
