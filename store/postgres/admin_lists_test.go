package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

func TestMessagesAreFiltered(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	old := o.write(t, o.Pool, "a", "A")
	o.run(t, `INSERT INTO outbox_messages (topic, type, payload, partition_key, scope, correlation_id, event_id, headers)
		VALUES ('billing', 'B', '', 'a\b', 'eu', 'c1', 'e1', '{"h": "v"}')`)
	odd := outbox.ID(pgtest.One[[16]byte](t, o.Pool, o.names.sql(`SELECT id FROM outbox_messages WHERE topic = 'billing'`)))
	parked, dead := o.write(t, o.Pool, "b", "A"), o.write(t, o.Pool, "c", "A")
	o.pass(t, "orders")
	o.park(t, "orders", parked.ID, store.ReasonRetry, 2, "5m")
	o.kill(t, "orders", dead.ID, "onward/unroutable", true)
	pending := o.write(t, o.Pool, "a", "C")
	all := []outbox.ID{pending.ID, dead.ID, parked.ID, odd, old.ID}
	for name, c := range map[string]struct {
		f    store.Filter
		want []outbox.ID
	}{
		"nothing":        {store.Filter{}, all},
		"sink":           {store.Filter{Sink: "orders"}, all},
		"topic":          {store.Filter{Topic: "billing"}, []outbox.ID{odd}},
		"type":           {store.Filter{Type: "A"}, []outbox.ID{dead.ID, parked.ID, old.ID}},
		"key":            {store.Filter{Key: "a"}, []outbox.ID{pending.ID, old.ID}},
		"odd key":        {store.Filter{Key: `a\b`}, []outbox.ID{odd}},
		"key and state":  {store.Filter{Key: "a", State: store.StatePublished}, []outbox.ID{old.ID}},
		"key and reason": {store.Filter{Key: "b", Reason: store.ReasonRetry}, []outbox.ID{parked.ID}},
		"key, no such":   {store.Filter{Key: "b", Reason: store.ReasonBehind}, nil},
		"event id":       {store.Filter{EventID: "e1"}, []outbox.ID{odd}},
		"correlation id": {store.Filter{CorrelationID: "c1"}, []outbox.ID{odd}},
		"scope":          {store.Filter{Scope: "eu"}, []outbox.ID{odd}},
		"id":             {store.Filter{ID: odd}, []outbox.ID{odd}},
		"id and topic":   {store.Filter{ID: odd, Topic: "orders"}, nil},
		"id and state":   {store.Filter{ID: odd, State: store.StatePublished}, []outbox.ID{odd}},
		"id, not it":     {store.Filter{ID: odd, State: store.StateDead}, nil},
		"no such id":     {store.Filter{ID: outbox.NewID()}, nil},
		"pending":        {store.Filter{State: store.StatePending}, []outbox.ID{pending.ID}},
		"published":      {store.Filter{State: store.StatePublished}, []outbox.ID{odd, old.ID}},
		"parked":         {store.Filter{State: store.StateParked}, []outbox.ID{parked.ID}},
		"dead":           {store.Filter{State: store.StateDead}, []outbox.ID{dead.ID}},
		"discarded":      {store.Filter{State: store.StateDiscarded}, nil},
		"reason":         {store.Filter{Reason: store.ReasonRetry}, []outbox.ID{parked.ID}},
		"code":           {store.Filter{Code: "onward/unroutable"}, []outbox.ID{dead.ID}},
		"attempts":       {store.Filter{Attempts: 2}, []outbox.ID{dead.ID, parked.ID}},
		"more attempts":  {store.Filter{Attempts: 3}, []outbox.ID{dead.ID}},
		"dead by reason": {store.Filter{State: store.StateDead, Reason: store.ReasonRetry}, nil},
		"since":          {store.Filter{Since: time.Now().Add(-long)}, all},
		"since later":    {store.Filter{Since: time.Now().Add(long)}, nil},
		"until":          {store.Filter{Until: time.Now().Add(-long)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := o.admin.Messages(t.Context(), c.f)
			if err != nil {
				t.Fatal(err)
			}
			if got := messageIDs(list.Messages); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if list.Next != "" || list.Partial {
				t.Errorf("next %q, partial %v, want the end", list.Next, list.Partial)
			}
		})
	}
}

func TestFiltersAreRefused(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	for name, f := range map[string]store.Filter{
		"state":    {State: "lost"},
		"reason":   {Reason: "mood"},
		"limit":    {Limit: 10_001},
		"negative": {Limit: -1},
		"attempts": {Attempts: -1},
		"range":    {Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
		"after":    {After: "yesterday"},
		"NUL":      {Key: "a\x00"},
	} {
		if _, err := o.admin.Messages(t.Context(), f); !errors.Is(err, store.ErrFilterInvalid) {
			t.Errorf("%s: messages: got %v, want ErrFilterInvalid", name, err)
		}
		if _, err := o.admin.Dead(t.Context(), f); !errors.Is(err, store.ErrFilterInvalid) {
			t.Errorf("%s: dead: got %v, want ErrFilterInvalid", name, err)
		}
	}
	o.sink(t, "orders")
	_, err := o.admin.Messages(t.Context(), store.Filter{Sink: "oders"})
	if !errors.Is(err, store.ErrNotFound) || !strings.Contains(outbox.Hint(err), "orders") {
		t.Errorf("an unknown sink: %v, hint %q", err, outbox.Hint(err))
	}
}

// Pages of every list, put together, are the whole list: nothing twice, nothing missing.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "audit")
	o.sink(t, "orders")
	tx := o.begin(t)
	var newestFirst, ofKey, exceptions []outbox.ID
	low := o.write(t, tx, "k", "A") // the lowest transaction writes the first and the last message
	for i := range 20 {
		key := []string{"k", "x"}[i%2]
		r := o.write(t, o.Pool, key, "A")
		newestFirst = append(newestFirst, r.ID)
		if key == "k" {
			ofKey = append(ofKey, r.ID)
		}
		if i%3 == 0 {
			o.park(t, "orders", r.ID, store.ReasonRetry, 1, "5m")
			o.park(t, "audit", r.ID, store.ReasonRetry, 1, "5m")
			exceptions = append(exceptions, r.ID)
		} else if i%3 == 1 {
			o.kill(t, "orders", r.ID, "onward/rejected", false)
			o.kill(t, "audit", r.ID, "onward/rejected", false)
			exceptions = append(exceptions, r.ID)
		}
	}
	high := o.write(t, tx, "k", "A")
	commitTx(t, tx)
	newestFirst = append([]outbox.ID{low.ID, high.ID}, newestFirst...)
	ofKey = append(append([]outbox.ID{low.ID}, ofKey...), high.ID)
	slices.Reverse(newestFirst)
	slices.Reverse(ofKey)
	slices.Reverse(exceptions)
	for name, c := range map[string]struct {
		f    store.Filter
		want []outbox.ID
	}{
		"by transaction":  {store.Filter{}, newestFirst},
		"of a key by seq": {store.Filter{Key: "k"}, ofKey},
		"exceptions":      {store.Filter{Attempts: 1}, exceptions},
	} {
		for limit := 1; limit <= 25; limit += 3 {
			c.f.Limit, c.f.After = limit, ""
			var got []outbox.ID
			for range 100 {
				list, err := o.admin.Messages(t.Context(), c.f)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, messageIDs(list.Messages)...)
				if c.f.After = list.Next; list.Next == "" {
					break
				}
				if n := len(list.Messages); n == 0 || n > limit || n < limit && name != "exceptions" {
					t.Fatalf("%s: a page of %d, want %d", name, n, limit)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, %d a page: got %v, want %v", name, limit, got, c.want)
			}
		}
	}
}

func TestDeadLettersArePagedAndFiltered(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "audit")
	o.sink(t, "orders")
	var want []string
	for i := range 7 {
		r := o.write(t, o.Pool, fmt.Sprint("k", i), "A")
		o.kill(t, "audit", r.ID, "onward/rejected", i%2 == 0)
		o.kill(t, "orders", r.ID, "onward/unroutable", i%2 == 0)
		want = append(want, "audit "+r.ID.String(), "orders "+r.ID.String())
	}
	slices.Reverse(want)
	names := func(list store.DeadList) (all []string) {
		for _, d := range list.Dead {
			all = append(all, d.Sink+" "+d.ID.String())
		}
		return all
	}
	for limit := 1; limit <= 15; limit++ {
		f := store.Filter{Limit: limit}
		var got []string
		for range 20 {
			list, err := o.admin.Dead(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, names(list)...)
			if f.After = list.Next; list.Next == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d a page: got %v, want %v", limit, got, want)
		}
	}
	for name, c := range map[string]struct {
		f    store.Filter
		want int
	}{
		"sink": {store.Filter{Sink: "orders"}, 7}, "code": {store.Filter{Code: "onward/rejected"}, 7}, "key": {store.Filter{Key: "k3"}, 2},
		"attempts": {store.Filter{Attempts: 3}, 14}, "more attempts": {store.Filter{Attempts: 4}, 0},
		"died since": {store.Filter{Since: time.Now().Add(-long)}, 14}, "until": {store.Filter{Until: time.Now().Add(-long)}, 0},
		"state": {store.Filter{State: store.StateDead}, 14}, "other state": {store.Filter{State: store.StateParked}, 0},
		"topic": {store.Filter{Topic: "orders", Type: "A"}, 14}, "scope": {store.Filter{Scope: "eu"}, 0},
	} {
		list, err := o.admin.Dead(t.Context(), c.f)
		if err != nil || len(list.Dead) != c.want {
			t.Errorf("%s: got %d, %v, want %d", name, len(list.Dead), err, c.want)
		}
	}
}

func TestADeadLetterIsShownWhole(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	r := o.write(t, o.Pool, "k", "A")
	for range 3 {
		o.park(t, "orders", o.write(t, o.Pool, "k", "A").ID, store.ReasonBehind, 0, "")
	}
	o.park(t, "orders", o.write(t, o.Pool, "other", "A").ID, store.ReasonRetry, 0, "1s")
	o.kill(t, "orders", r.ID, "onward/rejected", true)
	o.run(t, `INSERT INTO outbox_attempts (sink, id, attempt, relay, outcome, code, error, duration)
		SELECT 'orders', $1, n, 'relay-1', 'retry', 'onward/rejected', 'try ' || n, '20ms' FROM generate_series(1, 3) n`, [16]byte(r.ID))
	list, err := o.admin.Dead(t.Context(), store.Filter{ID: r.ID})
	if err != nil || len(list.Dead) != 1 {
		t.Fatalf("got %+v, %v", list, err)
	}
	d := list.Dead[0]
	if string(d.Payload) != "hello" || d.Behind != 3 || !d.Blocks || d.Relay != "relay-1" || d.Attempts != 3 || d.FirstFailure.After(d.LastFailure) {
		t.Errorf("got %+v", d)
	}
	if len(d.Tries) != 3 || d.Tries[2].No != 3 || d.Tries[2].Error != "try 3" || d.Tries[2].Took != 20*time.Millisecond || d.Tries[2].At.IsZero() {
		t.Errorf("tries: %+v", d.Tries)
	}
	if list, err = o.admin.Dead(t.Context(), store.Filter{ID: r.ID, Topic: "billing"}); err != nil || len(list.Dead) != 0 {
		t.Errorf("with another topic: got %+v, %v", list, err)
	}
}

// A list that no index serves stops where it was told to, says so, and goes on from there.
func TestListsReadABoundedNumberOfRows(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	o.admin.scan = 10
	needle := o.write(t, o.Pool, "k", "needle")
	o.kill(t, "orders", needle.ID, "onward/needle", false)
	for range 24 {
		r := o.write(t, o.Pool, "k", "hay")
		o.kill(t, "orders", r.ID, "onward/rejected", false)
	}
	steps := func(page func(after string) (n int, next string, partial bool)) (n int) {
		after := ""
		for range 3 {
			found, next, partial := page(after)
			if partial != (next != "") {
				t.Errorf("next %q, partial %v", next, partial)
			}
			n, after = n+found, next
		}
		if after != "" {
			t.Errorf("25 rows in steps of 10 go on at %q after three", after)
		}
		return n
	}
	for name, f := range map[string]store.Filter{
		"log": {Type: "needle"}, "key": {Key: "k", Type: "needle"}, "dead": {Code: "onward/needle"},
	} {
		n := steps(func(after string) (int, string, bool) {
			f.After = after
			list, err := o.admin.Messages(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Messages), list.Next, list.Partial
		})
		if n != 1 {
			t.Errorf("%s: found %d, want 1", name, n)
		}
	}
	n := steps(func(after string) (int, string, bool) {
		list, err := o.admin.Dead(t.Context(), store.Filter{Code: "onward/needle", After: after})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Dead), list.Next, list.Partial
	})
	if n != 1 {
		t.Errorf("dead letters: found %d, want 1", n)
	}
}

// What is pending is found without reading all that was published after it.
func TestPendingEndsAtItsFloor(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	for range 30 {
		o.write(t, o.Pool, "k", "A")
	}
	o.pass(t, "orders")
	o.admin.scan = 10
	list, err := o.admin.Messages(t.Context(), store.Filter{State: store.StatePending})
	if err != nil || len(list.Messages) != 0 || list.Partial {
		t.Errorf("drained: got %d, partial %v, %v, want a whole answer", len(list.Messages), list.Partial, err)
	}
	late := o.begin(t)
	want := o.write(t, late, "k", "A")
	o.write(t, o.Pool, "k", "A")
	o.pass(t, "orders")
	commitTx(t, late)
	list, err = o.admin.Messages(t.Context(), store.Filter{State: store.StatePending})
	if err != nil || len(list.Messages) != 1 || list.Messages[0].ID != want.ID || list.Partial {
		t.Errorf("one waits: got %v, partial %v, %v", messageIDs(list.Messages), list.Partial, err)
	}
}
