package postgres

import (
	"reflect"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The view of what is pending has exactly what the lists of the command line call pending or parked, in each sink: above the
// cursor, committed late, parked; not what was settled out of turn.
func TestTheViewOfWhatIsPendingAgreesWithTheStates(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	o.sink(t, "audit")
	o.run(t, `UPDATE outbox_sinks SET leaves = '^quiet$' WHERE name = 'audit'`)
	var all []outbox.Receipt
	write := func(w writer, key string) outbox.Receipt {
		r := o.write(t, w, key, "T")
		all = append(all, r)
		return r
	}
	late := o.begin(t)
	for i, key := range []string{"a", "b", "c", "d", "e", "f", "g", ""} {
		write(o.Pool, key)
		if i%3 == 0 {
			write(late, key)
		}
	}
	o.relay(t, "one", "orders", 6, "15s", 0, 1)
	o.pass(t, "audit")
	commitTx(t, late)
	for _, key := range []string{"a", "b", "c", "d"} {
		write(o.Pool, key)
	}
	o.run(t, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('quiet', 'T', '')`)
	n := len(all)
	o.park(t, "orders", all[0].ID, store.ReasonRetry, 2, "1 minute")
	o.park(t, "orders", all[n-1].ID, store.ReasonBehind, 0, "")
	o.kill(t, "audit", all[n-2].ID, "onward/rejected", true)
	o.run(t, `INSERT INTO outbox_audit (actor, action, sink, message_id) VALUES ('p', 'discard', 'orders', $1)`, [16]byte(all[n-3].ID))

	type place struct {
		Sink  string
		ID    outbox.ID
		State store.State
	}
	want, got := map[place]int{}, map[place]int{}
	list, err := o.admin.Messages(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Messages {
		for _, s := range m.States {
			if s.State == store.StatePending || s.State == store.StateParked {
				want[place{s.Sink, m.ID, s.State}]++
			}
		}
	}
	rows, err := o.Pool.Query(t.Context(), o.names.sql(`SELECT sink, id, state FROM outbox_pending`))
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var p place
		if err := rows.Scan(&p.Sink, (*[16]byte)(&p.ID), &p.State); err != nil {
			t.Fatal(err)
		}
		got[p]++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || len(want) < 12 {
		t.Errorf("the view has %v, the states say %v", got, want)
	}
	for _, r := range all {
		key := pgtest.One[string](t, o.Pool, o.names.sql(`SELECT partition_key FROM outbox_messages WHERE id = $1`), [16]byte(r.ID))
		if part := pgtest.One[int](t, o.Pool, o.names.sql(`SELECT outbox_partition($1)`), key); key != "" && part != r.Partition {
			t.Errorf("outbox_partition(%q) is %d, the message is in %d", key, part, r.Partition)
		}
	}
}

// What the view counts is what `onward status` counts, and those who may look may use the views.
func TestTheViewOfTheStatusAgreesWithIt(t *testing.T) {
	t.Parallel()
	o := newAdminOutbox(t)
	o.sink(t, "orders")
	for _, key := range []string{"a", "b", "c", "", ""} {
		o.write(t, o.Pool, key, "T")
	}
	parked, dead := o.write(t, o.Pool, "p", "T"), o.write(t, o.Pool, "q", "T")
	o.relay(t, "one", "orders", 3, "15s", 0, 1)
	o.park(t, "orders", parked.ID, store.ReasonRetry, 1, "1 minute")
	o.kill(t, "orders", dead.ID, "onward/rejected", true)
	k := o.status(t).Sinks[0]
	for _, role := range []string{"onward_viewer", "onward_admin"} {
		pool := o.As(t, role)
		var s store.SinkStatus
		var retry int64
		var late float64
		err := pool.QueryRow(t.Context(), o.names.sql(`SELECT sink, backlog, extract(epoch FROM lag)::float8, parked_retry, blocked_keys, dead, published, rate,
			partitions_owned, partitions_free, last_settle FROM outbox_status`)).
			Scan(&s.Name, &s.Backlog, &late, &retry, &s.BlockedKeys, &s.Dead, &s.Published, &s.Rate, &s.PartitionsOwned, &s.PartitionsFree, &s.LastSettle)
		if err != nil {
			t.Fatal(err)
		}
		got := []any{s.Name, s.Backlog, retry, s.BlockedKeys, s.Dead, s.Published, s.PartitionsOwned, s.PartitionsFree, s.LastSettle.UnixMicro()}
		want := []any{k.Name, k.Backlog, k.Parked[store.ReasonRetry], k.BlockedKeys, k.Dead, k.Published, k.PartitionsOwned, k.PartitionsFree, k.LastSettle.UnixMicro()}
		if !reflect.DeepEqual(got, want) || k.Backlog == 0 || k.BlockedKeys != 2 {
			t.Errorf("%s: the view has %v, the status %v", role, got, want)
		}
		if late < k.Lag.Seconds() || late > k.Lag.Seconds()+60 || s.Rate < k.Rate/2 || s.Rate > k.Rate*2 || s.Rate == 0 {
			t.Errorf("%s: the view has a lag of %fs and %f a second, the status %s and %f", role, late, s.Rate, k.Lag, k.Rate)
		}
		if _, err := pool.Exec(t.Context(), o.names.sql(`SELECT * FROM outbox_pending`)); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		if _, err := pool.Exec(t.Context(), o.names.sql(`SELECT * FROM outbox_published($1)`), [16]byte(dead.ID)); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}
