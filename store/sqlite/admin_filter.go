package sqlite

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// What lists are held to.
const (
	maxScan      = 100_000
	defaultLimit = 100
	maxLimit     = 10_000
)

// search is a filter that was checked.
type search struct {
	store.Filter
	seq  int64  // of the last one of the page before
	sink string // of the same, where the list has several rows of one seq
}

func newSearch(f store.Filter, op string) (q search, err error) {
	bad := func(detail, hint string) (search, error) {
		return search{}, &outbox.Error{Code: store.ErrFilterInvalid.Code, Op: op, Detail: detail, Hint: hint}
	}
	q = search{Filter: f, seq: math.MaxInt64}
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
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	switch {
	case q.Limit < 0 || q.Limit > maxLimit:
		return bad(fmt.Sprintf("limit %d is not from 1 to %d", q.Limit, maxLimit), "")
	case f.Attempts < 0:
		return bad("attempts are counted from 0", "")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return bad("since is not before until", "")
	}
	for _, text := range []string{f.Sink, f.Topic, f.Type, f.Key, f.EventID, f.CorrelationID, f.Scope, string(f.Code), f.After} {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return bad(fmt.Sprintf("%q contains NUL, or is not UTF-8", text), "no message has such a text")
		}
	}
	if f.After != "" {
		seq, sink, _ := strings.Cut(f.After, ".")
		if q.seq, err = strconv.ParseInt(seq, 10, 64); err != nil {
			return bad("after is not the next of a list", "pass it as the page before returned it")
		}
		q.sink = sink
	}
	return q, nil
}

// fields are the parameters 4 to 12 of the lists.
func (q *search) fields() []any {
	id := ""
	if !q.ID.IsZero() {
		id = q.ID.String()
	}
	return []any{q.Topic, q.Type, q.Key, q.EventID, q.CorrelationID, q.Scope, id, orNull(q.Since), orNull(q.Until)}
}

// orNull rounds up: a row lies behind the time if its microsecond does.
func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.Add(time.Microsecond - 1).UnixMicro()
}

func (q *search) asksForFailure() bool { return q.Reason != "" || q.Code != "" || q.Attempts > 0 }

// exceptional: only messages that are parked or dead somewhere can pass.
func (q *search) exceptional() bool {
	return q.State == store.StateParked || q.State == store.StateDead || q.State == "" && q.asksForFailure()
}

// passes says whether one of the states is what the filter asks for.
func (q *search) passes(states []store.SinkState) bool {
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
