package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

func TestRequeueAndDiscardAreTheSQLFunctions(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	dead, behind, skipped := o.write(t, o.Pool, "a", "A"), o.write(t, o.Pool, "a", "A"), o.write(t, o.Pool, "b", "A")
	published := o.write(t, o.Pool, "b", "A")
	o.pass(t, "orders")
	o.kill(t, "orders", dead.ID, "onward/rejected", true)
	o.park(t, "orders", behind.ID, store.ReasonBehind, 0, "")
	o.kill(t, "orders", skipped.ID, "onward/rejected", false)
	act := func(id outbox.ID) store.Act { return store.Act{Sink: "orders", ID: id, Actor: "ann", Reason: "a test"} }
	refused := func(what string, err, want error, words string) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), words) || strings.Count(err.Error(), "(onward/") != 1 {
			t.Errorf("%s: got %v, want %v that says %q", what, err, want, words)
		}
	}
	admin := o.admin
	refused("a reorder", admin.Requeue(t.Context(), act(skipped.ID), false), store.ErrReorderRefused, "at least 1 later")
	refused("a published one", admin.Requeue(t.Context(), act(published.ID), false), store.ErrStateConflict, "neither dead nor parked")
	refused("a parked one", admin.Requeue(t.Context(), act(behind.ID), false), store.ErrStateConflict, "is parked")
	refused("an unknown one", admin.Requeue(t.Context(), act(outbox.NewID()), false), store.ErrNotFound, "there is no message")
	refused("an unknown sink", admin.Discard(t.Context(), store.Act{Sink: "x", ID: dead.ID, Reason: "y"}), store.ErrNotFound, "there is no sink")
	refused("no reason", admin.Discard(t.Context(), store.Act{Sink: "orders", ID: dead.ID}), store.ErrReasonRequired, "reason")

	dry := act(dead.ID)
	dry.DryRun = true
	if err := errors.Join(admin.Requeue(t.Context(), dry, false), admin.Discard(t.Context(), dry)); err != nil {
		t.Errorf("dry runs: %v", err)
	}
	dry.ID = skipped.ID
	refused("a dry run of a reorder", admin.Requeue(t.Context(), dry, false), store.ErrReorderRefused, "at least 1 later")
	if got := o.stateIn(t, "orders", dead.ID); got != store.StateDead {
		t.Errorf("after dry runs it is %s, want dead", got)
	}

	if err := admin.Requeue(t.Context(), act(dead.ID), false); err != nil {
		t.Fatal(err)
	}
	if err := admin.Requeue(t.Context(), act(skipped.ID), true); err != nil {
		t.Fatal(err)
	}
	if err := admin.Discard(t.Context(), act(behind.ID)); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[outbox.ID]store.State{dead.ID: store.StateParked, skipped.ID: store.StateParked, behind.ID: store.StateDiscarded} {
		if got := o.stateIn(t, "orders", id); got != want {
			t.Errorf("message %s is %s, want %s", id, got, want)
		}
	}
	if got, err := admin.State(t.Context(), "orders", behind); err != nil || got != store.StateDiscarded {
		t.Errorf("the receipt of a discarded one: %s, %v", got, err)
	}
	if n := pgtest.One[int](t, o.Pool, o.names.sql(`SELECT count(*) FROM outbox_audit WHERE actor = 'ann'`)); n != 3 {
		t.Errorf("%d audit lines, want 3: dry runs and refusals leave none", n)
	}
	list, err := admin.Messages(t.Context(), store.Filter{State: store.StateDiscarded})
	if err != nil || len(list.Messages) != 1 || list.Messages[0].ID != behind.ID {
		t.Errorf("discarded: %v, %v", messageIDs(list.Messages), err)
	}
}

// With the shipped rights a viewer sees everything and changes nothing, and an admin repairs.
func TestAdminNeedsNoMoreThanTheShippedRights(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	pgtest.EnsureRoles(t, o.Pool, "onward_producer", "onward_relay", "onward_admin", "onward_viewer")
	if err := Migrate(t.Context(), o.Pool, MigrateConfig{Schema: o.Schema, TablePrefix: o.Prefix, Grants: true}); err != nil {
		t.Fatal(err)
	}
	o.sink(t, "orders")
	r := o.write(t, o.Pool, "a", "A")
	o.pass(t, "orders")
	o.kill(t, "orders", r.ID, "onward/rejected", true)
	as := func(role string) *Admin {
		admin, err := NewAdmin(o.As(t, role), Config{Schema: o.Schema, TablePrefix: o.Prefix})
		if err != nil {
			t.Fatal(err)
		}
		return admin
	}
	viewer := as("onward_viewer")
	_, e1 := viewer.Status(t.Context())
	_, e2 := viewer.Messages(t.Context(), store.Filter{State: store.StateDead})
	_, e3 := viewer.Messages(t.Context(), store.Filter{Key: "a", State: store.StatePending})
	_, e4 := viewer.Message(t.Context(), r.ID)
	_, e5 := viewer.Dead(t.Context(), store.Filter{ID: r.ID})
	_, e6 := viewer.Partitions(t.Context(), "orders")
	_, e7 := viewer.Relays(t.Context())
	_, e8 := viewer.State(t.Context(), "orders", r)
	_, e9 := viewer.Messages(t.Context(), store.Filter{State: store.StatePending})
	if err := errors.Join(e1, e2, e3, e4, e5, e6, e7, e8, e9); err != nil {
		t.Errorf("a viewer: %v", err)
	}
	act := store.Act{Sink: "orders", ID: r.ID, Reason: "a test"}
	if err := viewer.Requeue(t.Context(), act, false); err == nil || !strings.Contains(err.Error(), "42501") {
		t.Errorf("a viewer requeues: %v, want permission denied", err)
	}
	if err := as("onward_admin").Requeue(t.Context(), act, false); err != nil {
		t.Errorf("an admin requeues: %v", err)
	}
}
