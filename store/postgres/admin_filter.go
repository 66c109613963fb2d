package postgres

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// maxScan is how many rows a list reads where no index serves its filter.
const maxScan = 100_000

// Sizes of a page.
const (
	defaultLimit = 100
	maxLimit     = 10_000
)

// search is a filter that was checked.
type search struct {
	store.Filter
	limit int
	after place
	sink  string // of the place, where the list has several rows of one place
}

// search checks a filter and calls list with it, in one moment.
func (a *Admin) search(ctx context.Context, op string, f store.Filter, list func(tx pgx.Tx, q search) error) error {
	q, err := newSearch(f, op)
	if err != nil {
		return err
	}
	return a.read(ctx, op, func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, q.Sink); err != nil {
			return err
		}
		return list(tx, q)
	})
}

func newSearch(f store.Filter, op string) (q search, err error) {
	bad := func(detail, hint string) (search, error) {
		return search{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Op: op, Detail: detail, Hint: hint}
	}
	q = search{Filter: f, limit: f.Limit, after: place{tx: math.MaxUint64, seq: math.MaxInt64}}
	switch f.State {
	case "", store.StatePending, store.StateParked, store.StatePublished, store.StateDead, store.StateDiscarded:
	default:
		return bad(fmt.Sprintf("no message is listed by state %q", f.State), "the states are pending, parked, published, dead, discarded")
	}
	switch f.Reason {
	case "", store.ReasonRetry, store.ReasonScheduled, store.ReasonBehind, store.ReasonPaused:
	default:
		return bad(fmt.Sprintf("%q is no reason", f.Reason), "the reasons are retry, scheduled, behind, paused")
	}
	if q.limit == 0 {
		q.limit = defaultLimit
	}
	if q.limit < 0 || q.limit > maxLimit {
		return bad(fmt.Sprintf("limit %d is not from 1 to %d", q.limit, maxLimit), "")
	}
	if f.Attempts < 0 || f.Attempts > math.MaxInt32 {
		return bad("attempts are counted from 0", "")
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return bad("since is not before until", "")
	}
	for _, text := range []string{f.Sink, f.Topic, f.Type, f.Key, f.EventID, f.CorrelationID, f.Scope, string(f.Code), f.After} {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return bad(fmt.Sprintf("%q contains NUL, or is not UTF-8", text), "no message has such a text")
		}
	}
	if f.After != "" {
		if q.after, q.sink, err = parsePlace(f.After); err != nil || q.after.token(q.sink) != f.After {
			return bad("after is not the next of a list", "pass it as the page before returned it")
		}
	}
	return q, nil
}

// A place is written "transaction.seq" or, where a sink is part of it, "transaction.seq.sink".
func (p place) token(sink string) string {
	t := strconv.FormatUint(p.tx, 10) + "." + strconv.FormatInt(p.seq, 10)
	if sink != "" {
		t += "." + sink
	}
	return t
}

func parsePlace(token string) (p place, sink string, err error) {
	tx, rest, _ := strings.Cut(token, ".")
	seq, sink, _ := strings.Cut(rest, ".")
	if p.tx, err = strconv.ParseUint(tx, 10, 64); err == nil {
		p.seq, err = strconv.ParseInt(seq, 10, 64)
	}
	return p, sink, err
}

func (q search) txText() string { return strconv.FormatUint(q.after.tx, 10) }

// exceptional reports whether only parked and dead messages can be meant.
func (q search) exceptional() bool {
	return q.State == store.StateParked || q.State == store.StateDead || q.State == "" && q.asksForFailure()
}

func (q search) asksForFailure() bool { return q.Reason != "" || q.Code != "" || q.Attempts > 0 }

// impossible reports filters that nothing can pass: what fails has a reason or a code only while it is parked or dead.
func (q search) impossible() bool {
	switch q.State {
	case "", store.StateParked:
		return false
	case store.StateDead:
		return q.Reason != ""
	default:
		return q.asksForFailure()
	}
}

// passesFields says whether a message has what the filter asks of its own fields.
func (q search) passesFields(r *outbox.Record, at time.Time) bool {
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
	return (q.Since.IsZero() || !at.Before(q.Since)) && (q.Until.IsZero() || at.Before(q.Until))
}

// passesState says whether one of the sinks' states is what the filter asks for.
func (q search) passesState(states []store.SinkState) bool {
	if q.State == "" && !q.asksForFailure() {
		return true
	}
	if len(states) == 0 { // there is no sink yet
		return q.State == store.StatePending && !q.asksForFailure()
	}
	for _, s := range states {
		if (q.State == "" || q.State == s.State) && (q.Reason == "" || q.Reason == s.Reason) &&
			(q.Code == "" || q.Code == s.LastCode) && q.Attempts <= s.Attempts {
			return true
		}
	}
	return false
}

// orNull is a parameter that may be NULL.
func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
