package postgres

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
)

// A relay whose own clock is wrong does no harm: no statement carries a time of its own. It sends durations, and the database's
// clock says from when on.
func TestNoStatementCarriesTheRelaysOwnTime(t *testing.T) {
	t.Parallel()
	g, tr := newRig(t, 4).traced()
	s := &stale{rig: g, Session: g.join(func(r *store.Relay) { r.Heartbeat = time.Nanosecond })}
	tr.know(s.Session)
	g.write("a", "1", "2")
	g.write("b", "3")
	s.page = g.read(s.Session)
	m := done(s.page)
	tried := &store.Attempt{No: 1, Outcome: "retry", Code: "onward/rejected", Took: time.Second}
	m.Verdicts = []store.Verdict{
		verdictOf(s.record("1"), store.Verdict{To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Attempts: 1, Tried: tried}),
		verdictOf(s.record("2"), store.Verdict{To: store.Park, Reason: store.ReasonBehind}),
		verdictOf(s.record("3"), store.Verdict{To: store.Dead, Attempts: 1, Tried: tried}),
	}
	g.settle(s.Session, m)
	g.renew(s.Session)
	if _, err := s.Heads(t.Context(), held(s.Session), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Followers(t.Context(), store.Key{Partition: s.record("1").Partition, Key: "a"}, store.Place{}, store.Room{Messages: 10}); err != nil {
		t.Fatal(err)
	}
	next := g.crash(s.Session)
	tr.know(next)
	if err := next.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked, _ := tr.take()
	names := namesOf(asked)
	for _, needed := range []string{"read_shares", "settle_verdicts", "heartbeat", "heads", "followers", "look", "claim", "reload"} {
		if !slices.Contains(names, needed) {
			t.Errorf("%s was not asked: %v", needed, names)
		}
	}
	for _, q := range asked {
		for i, arg := range q.args {
			if isTime(reflect.ValueOf(arg)) {
				t.Errorf("%s: $%d is a time: %v", q.name, i+1, arg)
			}
		}
	}
}

// isTime reports whether a value is, or holds, a moment of these years.
func isTime(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && isTime(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if isTime(v.Index(i)) {
				return true
			}
		}
	case reflect.Struct:
		return v.Type() == reflect.TypeFor[time.Time]()
	case reflect.Int, reflect.Int64:
		now := time.Now()
		for _, unit := range []int64{now.Unix(), now.UnixMilli(), now.UnixMicro(), now.UnixNano()} {
			if n := v.Int(); n > unit-unit/100 && n < unit+unit/100 {
				return true
			}
		}
	case reflect.Float64:
		return v.Float() > 1e9 && v.Float() < 1e19
	case reflect.String:
		for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", fmt.Sprint(time.Now().Year()) + "-01-02"} {
			if _, err := time.Parse(layout, v.String()); err == nil {
				return true
			}
		}
	default:
	}
	return false
}
