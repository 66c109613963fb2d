package sqlite

import (
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Each message says the minute in which it went out, a minute without messages leaves no row, and the views tell what waits.
func TestAMessageSaysTheMinuteInWhichItWasPublished(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	r := aRelay()
	_, s := f.joined(t, r)
	admin := f.admin(t)
	publish := func() {
		t.Helper()
		f.fill(t, 1)
		p, err := s.Read(t.Context(), aRoom)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Settle(t.Context(), store.Settlement{Done: []store.Done{{Read: p.No, N: 1}}, Published: 1}); err != nil {
			t.Fatal(err)
		}
	}
	age := func(minutes int) {
		t.Helper()
		f.exec(t, `UPDATE outbox_partitions SET settled_at = settled_at - ? * 60000000`, minutes)
		f.exec(t, `UPDATE outbox_progress SET settled_at = settled_at - ? * 60000000, minute = minute - ? * 60000000`, minutes, minutes)
		f.exec(t, `UPDATE outbox_sinks SET created_at = created_at - ? * 60000000`, minutes)
	}
	var ago []int
	for _, minutes := range []int{7, 5, 3} {
		publish()
		age(minutes)
		for i := range ago {
			ago[i] += minutes
		}
		ago = append(ago, minutes)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.ID, r.Name = outbox.NewID(), "another"
	_, s = f.joined(t, r)
	publish()
	ago = append(ago, 0)
	if n := one[int](t, f, `SELECT count(*) FROM outbox_progress`); n != 3 {
		t.Errorf("%d rows, want one for each minute that is over", n)
	}
	status, err := admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := status.Now.Truncate(time.Minute)
	for i, want := range ago {
		id, err := outbox.ParseID(one[string](t, f, `SELECT id FROM outbox_messages ORDER BY seq LIMIT 1 OFFSET ?`, i))
		if err != nil {
			t.Fatal(err)
		}
		m, err := admin.Message(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		state := m.States[0]
		if state.PublishedAfter == nil || state.PublishedBy == nil {
			t.Fatalf("message %d: %+v", i, state)
		}
		after, by := int(now.Sub(state.PublishedAfter.Truncate(time.Minute)).Minutes()), int(now.Sub(state.PublishedBy.Truncate(time.Minute)).Minutes())
		if after < want || after > want+1 || by < want || by > want+1 { // a minute may end meanwhile
			t.Errorf("message %d: published between %d and %d minutes ago, want %d", i, after, by, want)
		}
	}
	f.fill(t, 2)
	f.exec(t, `INSERT INTO outbox_dead (sink, id, partition_key, place, seq, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
			aggregate_type, aggregate_id, event_id, key_seq, created_at, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT 'orders', id, partition_key, seq, seq, topic, type, payload, content_type, headers, scope, correlation_id, causation_id,
			aggregate_type, aggregate_id, event_id, key_seq, created_at, 0, 'c', 'e', 1, 0, 0, 'r' FROM outbox_messages ORDER BY seq DESC LIMIT 1`)
	if n := one[int](t, f, `SELECT count(*) FROM outbox_pending WHERE state = 'pending' AND sink = 'orders'`); n != 1 {
		t.Errorf("%d messages are pending, want 1", n)
	}
	if n := one[int](t, f, `SELECT backlog + dead * 10 + published * 100 FROM outbox_status WHERE relay = 'another'`); n != 412 {
		t.Errorf("the view of the status has %d, want a backlog of 2, 1 dead, 4 published", n)
	}
}
