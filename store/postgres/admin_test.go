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

func TestStatusBeforeTheFirstRelay(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	s := o.status(t)
	if len(s.Sinks) != 0 || s.Partitions != 4 || s.Schema != schemaVersion || !strings.HasPrefix(s.Database, "PostgreSQL ") || s.Now.IsZero() {
		t.Errorf("got %+v", s)
	}
}

func TestAdminSaysThatTheTablesAreMissing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin, err := NewAdmin(db.Pool, Config{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.Status(t.Context())
	if !errors.Is(err, store.ErrSchemaMissing) || !strings.Contains(outbox.Hint(err), "onward migrate up") {
		t.Errorf("got %v, hint %q", err, outbox.Hint(err))
	}
	if _, err := NewAdmin(db.Pool, Config{Schema: "x; drop"}); !errors.Is(err, outbox.ErrIdentifierInvalid) {
		t.Errorf("got %v, want ErrIdentifierInvalid", err)
	}
}

// What the cursors have not passed is the backlog, wherever they stand and however late it was committed.
func TestStatusCountsTheBacklog(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	backlog := func() int64 { s := o.status(t).Sinks[0]; return s.Backlog }
	for i := range 20 {
		o.write(t, o.Pool, fmt.Sprint(i), "A")
	}
	if got := backlog(); got != 20 {
		t.Errorf("before the first read: backlog %d, want 20", got)
	}
	late := o.begin(t)
	for i := range 5 {
		o.write(t, late, fmt.Sprint(i), "late")
	}
	o.write(t, o.Pool, "x", "A") // so that max(seq) is above the late ones
	o.pass(t, "orders")
	if s := o.status(t).Sinks[0]; s.Backlog != 0 || s.Lag != 0 {
		t.Errorf("after everything visible was read: backlog %d, lag %v, want none", s.Backlog, s.Lag)
	}
	commitTx(t, late)
	if s := o.status(t).Sinks[0]; s.Backlog != 5 || s.Lag <= 0 {
		t.Errorf("after the late commit: backlog %d, lag %v, want 5 and an age", s.Backlog, s.Lag)
	}
	newest := o.write(t, o.Pool, "y", "A")
	if got := backlog(); got != 6 {
		t.Errorf("with a newer one: backlog %d, want 6", got)
	}
	o.relay(t, "r1", "orders", newest.Seq, "15s", 0, 1, 2, 3) // its row counts now, not the partitions' own cursors
	if got := backlog(); got != 0 {
		t.Errorf("passed by the relay's row: backlog %d, want 0", got)
	}
	o.write(t, o.Pool, "z", "A")
	o.run(t, `UPDATE outbox_cursors SET partitions = '{}', seqs = '{}'`) // claimed, and not yet on the relay's snapshot
	if got := backlog(); got != 7 {
		t.Errorf("by the partitions' own cursors: backlog %d, want 7", got)
	}
}

// In a late pass (S, L, S', l) what S' sees is passed up to l, and no further.
func TestALatePassCountsUpToItsPlace(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	late := o.begin(t)
	var receipts []outbox.Receipt
	for range 4 {
		receipts = append(receipts, o.write(t, late, "k", "late"))
	}
	o.write(t, o.Pool, "k", "A")
	o.pass(t, "orders")
	commitTx(t, late)
	o.run(t, `UPDATE outbox_partitions SET late_snapshot = pg_current_snapshot(), late_seq = $1`, receipts[1].Seq)
	want := []store.State{store.StatePublished, store.StatePublished, store.StatePending, store.StatePending}
	for i, r := range receipts {
		if got := o.stateIn(t, "orders", r.ID); got != want[i] {
			t.Errorf("message %d of the pass: %s, want %s", i, got, want[i])
		}
		if got, err := o.admin.State(t.Context(), "orders", r); err != nil || got != want[i] {
			t.Errorf("receipt %d of the pass: %s, %v, want %s", i, got, err, want[i])
		}
	}
	if got := o.status(t).Sinks[0].Backlog; got != 2 {
		t.Errorf("backlog %d, want 2", got)
	}
}

// While a relay holds a partition, its own row says how far it is; the partition's is what was before.
func TestStatesComeFromTheRelaysRow(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	late := o.begin(t)
	lateOnes := []outbox.Receipt{o.write(t, late, "k", "late"), o.write(t, late, "k", "late")}
	passed := o.write(t, o.Pool, "k", "A")
	above := o.write(t, o.Pool, "k", "A")
	o.relay(t, "r1", "orders", passed.Seq, "15s", 0, 1, 2, 3)
	commitTx(t, late)
	o.run(t, `UPDATE outbox_cursors SET late_snapshot = pg_current_snapshot(), late_seq = $1`, lateOnes[0].Seq)
	for r, want := range map[outbox.Receipt]store.State{
		passed: store.StatePublished, above: store.StatePending, lateOnes[0]: store.StatePublished, lateOnes[1]: store.StatePending,
	} {
		if got := o.stateIn(t, "orders", r.ID); got != want {
			t.Errorf("message %d: %s, want %s", r.Seq, got, want)
		}
		if got, err := o.admin.State(t.Context(), "orders", r); err != nil || got != want {
			t.Errorf("receipt %d: %s, %v, want %s", r.Seq, got, err, want)
		}
	}
	if got := o.status(t).Sinks[0].Backlog; got != 2 {
		t.Errorf("backlog %d, want 2", got)
	}
}

func TestStatusCountsParkedAndDead(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	var r []outbox.Receipt
	for i := range 9 {
		r = append(r, o.write(t, o.Pool, []string{"a", "a", "b", "b", "c", "", "", "d", "e"}[i], "A"))
	}
	o.pass(t, "orders")
	o.park(t, "orders", r[0].ID, store.ReasonRetry, 2, "5m")     // head of a
	o.park(t, "orders", r[1].ID, store.ReasonBehind, 0, "")      // behind it
	o.kill(t, "orders", r[2].ID, "onward/rejected", true)        // blocks b
	o.park(t, "orders", r[3].ID, store.ReasonBehind, 0, "")      // behind the dead one
	o.kill(t, "orders", r[4].ID, "onward/rejected", false)       // c goes on
	o.park(t, "orders", r[5].ID, store.ReasonRetry, 1, "5m")     // without a key: blocks nothing
	o.park(t, "orders", r[7].ID, store.ReasonScheduled, 0, "5m") // alone, blocks nobody
	o.park(t, "orders", r[8].ID, store.ReasonBehind, 1, "0s")    // the head of e, promoted
	o.relay(t, "r1", "orders", 9, "15s", 0, 1, 2)
	o.relay(t, "gone", "orders", 9, "-1s")
	o.run(t, `UPDATE outbox_sinks SET published = 100`)
	s := o.status(t)
	k := s.Sinks[0]
	if k.Parked[store.ReasonRetry] != 2 || k.Parked[store.ReasonBehind] != 3 || k.Parked[store.ReasonScheduled] != 1 {
		t.Errorf("parked %v, want 2 retry, 3 behind, 1 scheduled", k.Parked)
	}
	if k.BlockedKeys != 3 || k.Dead != 2 || k.CountsAtLeast {
		t.Errorf("blocked keys %d, dead %d, at least %v, want 3 (a, b, e), 2, false", k.BlockedKeys, k.Dead, k.CountsAtLeast)
	}
	if k.Published != 122 || k.PartitionsOwned != 3 || k.PartitionsFree != 1 || k.LastSettle.IsZero() || s.RelaysLive != 1 {
		t.Errorf("got %+v with %d relays, want 122 published, 3 partitions owned, 1 free, 1 relay live", k, s.RelaysLive)
	}
}

func TestMessagesSayWhereTheyStand(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	o.sink(t, "audit")
	var r []outbox.Receipt
	for range 5 {
		r = append(r, o.write(t, o.Pool, "a", "A"))
	}
	o.pass(t, "orders")
	o.park(t, "orders", r[1].ID, store.ReasonRetry, 2, "5m")
	o.kill(t, "orders", r[2].ID, "onward/rejected", true)
	o.run(t, `INSERT INTO outbox_audit (actor, action, sink, message_id) VALUES ('me', 'discard', 'orders', $1)`, [16]byte(r[3].ID))
	want := []store.State{store.StatePublished, store.StateParked, store.StateDead, store.StateDiscarded, store.StatePublished}
	list, err := o.admin.Messages(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(list.Messages)
	for i, m := range list.Messages {
		if len(m.States) != 2 || m.States[0].Sink != "audit" || m.States[0].State != store.StatePending || m.States[1].State != want[i] {
			t.Errorf("message %d: %+v, want pending in audit and %s in orders", i, m.States, want[i])
		}
		if m.Payload != nil || m.PayloadBytes != 5 || m.Tx != r[i].Tx || m.Seq != r[i].Seq || m.Key != "a" {
			t.Errorf("message %d is %+v", i, m)
		}
	}
	parked := list.Messages[1].States[1]
	if parked.Reason != store.ReasonRetry || parked.Attempts != 2 || parked.DueAt == nil || parked.LastCode != "onward/rejected" || parked.LastError != "no" {
		t.Errorf("parked: %+v", parked)
	}
	whole, err := o.admin.Message(t.Context(), r[2].ID)
	if err != nil || string(whole.Payload) != "hello" || whole.States[1].State != store.StateDead || whole.States[1].LastError != "it failed" {
		t.Errorf("got %+v, %v", whole, err)
	}
	o.run(t, `DELETE FROM outbox_messages`) // as retention will: the copies are still there
	if whole, err = o.admin.Message(t.Context(), r[1].ID); err != nil || string(whole.Payload) != "hello" {
		t.Errorf("a parked one without its row in the log: %+v, %v", whole, err)
	}
	if _, err = o.admin.Message(t.Context(), r[0].ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestPartitionsSayWhoHoldsThem(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "audit")
	o.sink(t, "orders")
	o.run(t, `UPDATE outbox_partitions SET seq = 5, freed_at = clock_timestamp() WHERE sink = 'orders'`)
	o.relay(t, "r1", "orders", 77, "15s", 1, 2)
	r := o.write(t, o.Pool, "k", "A")
	o.park(t, "orders", r.ID, store.ReasonRetry, 1, "1s")
	all, err := o.admin.Partitions(t.Context(), "orders")
	if err != nil || len(all) != 4 {
		t.Fatalf("got %+v, %v", all, err)
	}
	for i, p := range all {
		held := i == 1 || i == 2
		if p.Partition != i || p.Sink != "orders" || (p.Relay == "r1") != held || (p.Seq == 77) != held || (p.Epoch == 1) != held || p.FreedAt.IsZero() {
			t.Errorf("partition %d: %+v", i, p)
		}
		if (p.Parked == 1) != (r.Partition == i) {
			t.Errorf("partition %d has %d parked; the message is in %d", i, p.Parked, r.Partition)
		}
	}
	if all, err = o.admin.Partitions(t.Context(), ""); err != nil || len(all) != 8 || all[0].Sink != "audit" {
		t.Errorf("of all sinks: %d, %v", len(all), err)
	}
	if _, err = o.admin.Partitions(t.Context(), "nope"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestRelaysAreListed(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	id := o.relay(t, "b", "orders", 0, "15s", 1, 2)
	o.relay(t, "a", "orders", 0, "-1s")
	all, err := o.admin.Relays(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("got %+v, %v", all, err)
	}
	if a := all[0]; a.Name != "a" || a.Live || a.Partitions != 0 {
		t.Errorf("got %+v", a)
	}
	b := all[1]
	if b.ID != id || b.Name != "b" || !b.Live || b.Draining || b.Partitions != 2 || b.Host != "host-a" || b.PID != 42 || b.Version != "v0.1.0" ||
		!slices.Equal(b.Sinks, []string{"orders"}) || b.Lease != 15*time.Second || b.StartedAt.IsZero() || !b.LeasedUntil.After(b.HeartbeatAt) {
		t.Errorf("got %+v", b)
	}
}

// What became of a receipt's message, whatever became of its transaction.
func TestReceiptsAreFollowed(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	published, parked, dead := o.write(t, o.Pool, "a", "A"), o.write(t, o.Pool, "b", "A"), o.write(t, o.Pool, "c", "A")
	discarded := o.write(t, o.Pool, "d", "A")
	aborted := o.begin(t)
	rolledBack := o.write(t, aborted, "e", "A")
	if err := aborted.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	inSavepoint := o.begin(t)
	savepoint, err := inSavepoint.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	undone := o.write(t, savepoint, "f", "A")
	if err := savepoint.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	commitTx(t, inSavepoint)
	running := o.write(t, o.begin(t), "g", "A")
	o.pass(t, "orders")
	pending := o.write(t, o.Pool, "h", "A")
	o.park(t, "orders", parked.ID, store.ReasonRetry, 1, "1s")
	o.kill(t, "orders", dead.ID, "onward/rejected", true)
	o.run(t, `INSERT INTO outbox_audit (actor, action, sink, message_id) VALUES ('me', 'discard', 'orders', $1)`, [16]byte(discarded.ID))
	never := outbox.Receipt{ID: outbox.NewID(), Partition: 1, Seq: 1, Tx: published.Tx}
	elsewhere := outbox.Receipt{ID: outbox.NewID(), Partition: 1, Seq: 1, Tx: 1 << 62}
	for name, c := range map[string]struct {
		r    outbox.Receipt
		want store.State
	}{
		"published": {published, store.StatePublished}, "parked": {parked, store.StateParked}, "dead": {dead, store.StateDead},
		"discarded": {discarded, store.StateDiscarded}, "pending": {pending, store.StatePending},
		"rolled back": {rolledBack, store.StateRolledBack}, "still open": {running, store.StatePending},
		"rolled back to a savepoint": {undone, store.StateUnknown}, "never written": {never, store.StateUnknown},
		"of the future": {elsewhere, store.StatePending}, "without a transaction": {outbox.Receipt{ID: never.ID, Seq: 1}, store.StateUnknown},
	} {
		if got, err := o.admin.State(t.Context(), "orders", c.r); err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
	}
	if _, err := o.admin.State(t.Context(), "nope", published); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown sink: got %v, want ErrNotFound", err)
	}
}
