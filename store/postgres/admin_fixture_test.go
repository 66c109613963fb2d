package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// adminOutbox is an outbox whose cursors, parked and dead messages the test sets by hand, as a relay would leave them.
type adminOutbox struct {
	*pgtest.DB
	admin *Admin
	names names
}

func newAdminOutbox(t testing.TB) *adminOutbox {
	t.Helper()
	db := newOutbox(t, 4)
	n, err := newNames(db.Schema, db.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := NewAdmin(db.Pool, Config{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	return &adminOutbox{DB: db, admin: admin, names: n}
}

func (o *adminOutbox) run(t testing.TB, sql string, args ...any) {
	t.Helper()
	o.Exec(t, o.names.sql(sql), args...)
}

// sink registers a sink whose cursors have seen nothing.
func (o *adminOutbox) sink(t testing.TB, name string) {
	t.Helper()
	o.run(t, `INSERT INTO outbox_sinks (name) VALUES ($1)`, name)
	o.run(t, `INSERT INTO outbox_partitions (sink, partition_id, snapshot, seq)
		SELECT $1, p, pg_current_snapshot(), 0 FROM generate_series(0, 3) p`, name)
}

// writer is a transaction or the pool.
type writer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// write writes a message and returns its receipt.
func (o *adminOutbox) write(t testing.TB, w writer, key, typ string) outbox.Receipt {
	t.Helper()
	r := outbox.Receipt{ID: outbox.NewID()}
	err := w.QueryRow(t.Context(), o.names.sql(`INSERT INTO outbox_messages (id, topic, partition_key, type, payload)
		VALUES ($1, 'orders', $2, $3, 'hello') RETURNING partition_id, seq, txid::text::bigint`), [16]byte(r.ID), key, typ).
		Scan(&r.Partition, &r.Seq, &r.Tx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (o *adminOutbox) begin(t testing.TB) pgx.Tx {
	t.Helper()
	tx, err := o.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commitTx(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// pass moves the cursors of free partitions to what a read sees now.
func (o *adminOutbox) pass(t testing.TB, sink string) {
	t.Helper()
	o.run(t, `UPDATE outbox_partitions SET snapshot = pg_current_snapshot(), seq = (SELECT coalesce(max(seq), 0) FROM outbox_messages) WHERE sink = $1`, sink)
}

// relay registers a relay that holds partitions, with one cursor row for them: at seq, of a snapshot of now.
func (o *adminOutbox) relay(t testing.TB, name, sink string, seq int64, lease string, partitions ...int32) outbox.ID {
	t.Helper()
	id := outbox.NewID()
	partitions = append([]int32{}, partitions...) // none is no NULL
	o.run(t, `INSERT INTO outbox_relays (id, name, sinks, lease, host, pid, version, heartbeat_at, leased_until)
		VALUES ($1, $2, ARRAY[$3], '15s', 'host-a', 42, 'v0.1.0', clock_timestamp(), clock_timestamp() + $4::interval)`, [16]byte(id), name, sink, lease)
	o.run(t, `INSERT INTO outbox_cursors (sink, relay, no, snapshot, partitions, seqs, published, settled_at)
		VALUES ($1, $2, 7, pg_current_snapshot(), $3, ARRAY(SELECT $4::bigint FROM unnest($3::int[])), 11, clock_timestamp())`,
		sink, [16]byte(id), partitions, seq)
	o.run(t, `UPDATE outbox_partitions SET relay = $2, epoch = epoch + 1 WHERE sink = $1 AND partition_id = ANY ($3)`, sink, [16]byte(id), partitions)
	return id
}

const copiedColumns = `partition_id, partition_key, seq, txid, id, topic, type, payload, content_type, headers, scope,
	correlation_id, causation_id, aggregate_type, aggregate_id, event_id, key_seq, created_at, available_at`

// park copies a message; due is an interval from now, empty for none.
func (o *adminOutbox) park(t testing.TB, sink string, id outbox.ID, reason store.Reason, attempts int, due string) {
	t.Helper()
	o.run(t, `INSERT INTO outbox_parked (sink, place, `+copiedColumns+`, reason, attempts, due_at, last_code, last_error)
		SELECT $1, seq, `+copiedColumns+`, $3, $4, clock_timestamp() + nullif($5, '')::interval, CASE WHEN $4 > 0 THEN 'onward/rejected' ELSE '' END,
		       CASE WHEN $4 > 0 THEN 'no' ELSE '' END
		FROM outbox_messages WHERE id = $2`, sink, [16]byte(id), string(reason), attempts, due)
}

// kill copies a message into the dead letters.
func (o *adminOutbox) kill(t testing.TB, sink string, id outbox.ID, code outbox.Code, blocks bool) {
	t.Helper()
	o.run(t, `INSERT INTO outbox_dead (sink, place, `+copiedColumns+`, blocks, code, error, attempts, first_failure, last_failure, relay)
		SELECT $1, seq, `+copiedColumns+`, $4, $3, 'it failed', 3, created_at, clock_timestamp(), 'relay-1'
		FROM outbox_messages WHERE id = $2`, sink, [16]byte(id), string(code), blocks)
}

// stateIn returns a message's state in a sink, as a list says it.
func (o *adminOutbox) stateIn(t testing.TB, sink string, id outbox.ID) store.State {
	t.Helper()
	list, err := o.admin.Messages(t.Context(), store.Filter{Sink: sink, ID: id})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Messages) != 1 || len(list.Messages[0].States) != 1 {
		t.Fatalf("message %s: got %+v, want one with one state", id, list)
	}
	return list.Messages[0].States[0].State
}

func (o *adminOutbox) status(t testing.TB) store.Status {
	t.Helper()
	s, err := o.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// messageIDs are those of a list, for comparing.
func messageIDs(ms []store.MessageInfo) []outbox.ID {
	all := make([]outbox.ID, len(ms))
	for i := range ms {
		all[i] = ms[i].ID
	}
	return all
}

const long = time.Hour
