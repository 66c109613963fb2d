package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Admin answers what people ask of an outbox, and acts for them. It is a store.Admin and a store.Tracker. Safe for
// concurrent use.
//
// Reads run in read-only transactions and need no more rights than those of onward_viewer; Requeue and Discard call the
// SQL functions of the same names, as psql does, and need those of onward_admin. Errors that are not of package store are
// the database's own.
type Admin struct {
	pool *pgxpool.Pool
	sql  map[string]string // by file name, in this outbox's names
	scan int               // rows that a list reads where no index serves it: maxScan, or fewer in tests
}

var (
	_ store.Admin   = (*Admin)(nil)
	_ store.Tracker = (*Admin)(nil)
)

// NewAdmin returns an Admin of the outbox in c's schema. It asks the database nothing yet; the pool stays the caller's.
func NewAdmin(pool *pgxpool.Pool, c Config) (*Admin, error) {
	n, err := newNames(c.Schema, c.TablePrefix)
	if err != nil {
		return nil, err
	}
	return &Admin{pool: pool, sql: adminSQL(n), scan: maxScan}, nil
}

// adminSQL is every statement of Admin in this outbox's names.
func adminSQL(n names) map[string]string {
	all := make(map[string]string)
	for _, name := range queryNames("admin") {
		all[name] = n.sql(queryFile("admin", name, nil))
	}
	return all
}

// readSettings hold for the statements of Admin. Each is written along an index and stops by a LIMIT; a planner that
// expects to read most of a table anyway would start at its beginning, or sort it, and not know where the bound lies.
// Compiling them takes longer than running them.
const readSettings = "SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_mergejoin = off"

// read runs f in a read-only transaction that sees one moment.
func (a *Admin) read(ctx context.Context, op string, f func(tx pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, readSettings); err != nil {
			return err
		}
		return f(tx)
	})
	return adminError(op, err)
}

// adminError says what was being done, and names what the database means by a missing table.
func adminError(op string, err error) error {
	var own *outbox.Error
	if err == nil || errors.As(err, &own) && own.Op != "" {
		return err
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42883") {
		return &outbox.Error{
			Code: store.ErrSchemaMissing.Code, Op: op, Detail: store.ErrSchemaMissing.Detail, Err: err,
			Hint: "create them with `onward migrate up`, or check database.schema and database.table_prefix",
		}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// collect runs a named statement and scans each row.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args []any, scan func(row pgx.CollectableRow) (T, error)) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// Partitions returns the partitions of a sink (empty: of all sinks), by number. Parked messages are counted up to
// 100,000 for each.
func (a *Admin) Partitions(ctx context.Context, sink string) (all []store.PartitionInfo, err error) {
	err = a.read(ctx, "list partitions", func(tx pgx.Tx) error {
		if err := a.checkSink(ctx, tx, sink); err != nil {
			return err
		}
		all, err = collect(ctx, tx, a.sql["partitions"], []any{sink}, func(row pgx.CollectableRow) (p store.PartitionInfo, err error) {
			var freed nullTime
			err = row.Scan(&p.Sink, &p.Partition, &p.Relay, &p.Epoch, &p.Seq, &freed, &p.Parked)
			p.FreedAt = freed.Time
			return p, err
		})
		return err
	})
	return all, err
}

// Relays returns the registered relays by name, expired ones included until another relay has taken them over.
func (a *Admin) Relays(ctx context.Context) (all []store.RelayInfo, err error) {
	err = a.read(ctx, "list relays", func(tx pgx.Tx) error {
		all, err = collect(ctx, tx, a.sql["relays"], nil, func(row pgx.CollectableRow) (r store.RelayInfo, err error) {
			err = row.Scan((*[16]byte)(&r.ID), &r.Name, &r.Host, &r.Version, &r.PID, &r.Sinks, &r.Partitions, &r.Draining, &r.Live,
				&r.StartedAt, &r.HeartbeatAt, &r.LeasedUntil, &r.Lease)
			return r, err
		})
		return err
	})
	return all, err
}

// checkSink refuses a sink that does not exist, and names those that do.
func (a *Admin) checkSink(ctx context.Context, tx pgx.Tx, sink string) error {
	if sink == "" {
		return nil
	}
	known, err := collect(ctx, tx, a.sql["sinks"], nil, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range known {
		if name == sink {
			return nil
		}
	}
	hint := "no relay has registered a sink yet"
	if len(known) > 0 {
		hint = "the sinks are: " + strings.Join(known, ", ")
	}
	return &outbox.Error{Code: store.ErrNotFound.Code, Op: "find sink", Detail: fmt.Sprintf("there is no sink %q", sink), Hint: hint}
}
