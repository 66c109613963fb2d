package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/failpoint"
)

// MigrateConfig says which outbox to migrate. The zero value is the outbox_ tables in the schema public.
type MigrateConfig struct {
	Schema      string // default public; made where it is missing
	TablePrefix string // default outbox_
	// Partitions of a new outbox, a power of two up to MaxPartitions; default DefaultPartitions. An outbox that exists keeps
	// its number: another one here is refused, 0 is not.
	Partitions int
	// Grants runs the shipped grants too. The roles must exist: they belong to the whole server, so nothing here makes them.
	Grants bool
	Roles  Roles // of the grants; default onward_producer, onward_relay, onward_admin, onward_viewer
	// LockTimeout is how long a step waits for a table's lock, because everybody else waits behind it; default 5 s. The
	// step is then undone and an error says so: run it again. Steps outside a transaction wait as long as it takes: nobody
	// waits behind them.
	LockTimeout time.Duration
	// Report, where set, is called before each step runs.
	Report func(Migration)
}

// Migrator brings an outbox's schema up to this program's version, and says where it stands. Several may run at once, on
// any hosts: each step runs once. Safe for concurrent use.
type Migrator struct {
	pool   *pgxpool.Pool
	names  names
	config MigrateConfig
	steps  func(partitions int) []Migration // tests add steps
}

// Migrate is NewMigrator and Up.
func Migrate(ctx context.Context, pool *pgxpool.Pool, c MigrateConfig) error {
	m, err := NewMigrator(pool, c)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// NewMigrator returns a Migrator that uses one connection of the pool at a time; the pool stays the caller's. Print needs
// none: nil serves. Errors: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid.
func NewMigrator(pool *pgxpool.Pool, c MigrateConfig) (*Migrator, error) {
	n, err := newNames(c.Schema, c.TablePrefix)
	if err != nil {
		return nil, err
	}
	if c.Partitions != 0 {
		if err := checkPartitions(c.Partitions); err != nil {
			return nil, err
		}
	}
	if err := c.Roles.validate(); err != nil {
		return nil, err
	}
	if c.LockTimeout < 0 || c.LockTimeout > 0 && c.LockTimeout < time.Millisecond {
		return nil, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "postgres configuration",
			Detail: "lock timeout " + c.LockTimeout.String(), Hint: "choose 1ms or more; 0 is 5s",
		}
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 5 * time.Second
	}
	return &Migrator{pool: pool, names: n, config: c, steps: n.migrations}, nil
}

// MigrationStatus is where an outbox's schema stands.
type MigrationStatus struct {
	Version    int // 0: there is no outbox
	Target     int // of this program
	Partitions int // 0: there is no outbox
	Applied    []Migration
	Pending    []Migration
}

// Status reads where the schema stands. A schema that is newer than this program is no error here.
func (m *Migrator) Status(ctx context.Context) (MigrationStatus, error) {
	s := MigrationStatus{}
	err := m.onConnection(ctx, "migration status", func(conn *pgx.Conn) error {
		have, err := m.version(ctx, conn)
		if err != nil {
			return err
		}
		s.Version, s.Partitions = have.version, have.partitions
		steps := m.steps(m.partitions(have))
		s.Target = len(steps)
		at := min(have.version, len(steps))
		s.Applied, s.Pending = steps[:at:at], steps[at:]
		return nil
	})
	return s, err
}

// Up runs the steps that are missing, each in a transaction of its own (but for those that cannot), and then the grants
// where the configuration asks for them. What was done stays done when a later step fails.
//
// Errors: store.ErrDatabaseUnsupported (before PostgreSQL 14, not UTF8, a standby), store.ErrSchemaNew, outbox.ErrConfigInvalid
// (another number of partitions than the outbox has, a role that does not exist), ErrForbidden (the database's user may not),
// store.ErrStateConflict (another transaction held a lock for LockTimeout: run it again), or the database's own.
func (m *Migrator) Up(ctx context.Context) error {
	return m.onConnection(ctx, "migrate", func(conn *pgx.Conn) error {
		if err := checkServer(ctx, conn, "migrate"); err != nil {
			return err
		}
		for {
			done, err := m.step(ctx, conn)
			if err != nil {
				return err
			}
			if done {
				break
			}
		}
		if m.config.Grants {
			return m.grant(ctx, conn)
		}
		return nil
	})
}

func (m *Migrator) grant(ctx context.Context, conn *pgx.Conn) error {
	return m.transaction(ctx, conn, func(tx pgx.Tx) error {
		return refusedBy(execAll(ctx, tx.Conn(), m.config.Roles.in(m.names.grants())), "the grants")
	})
}

// installed is what outbox_meta says; version 0: nothing is installed.
type installed struct{ version, partitions int }

func (m *Migrator) version(ctx context.Context, q querier) (installed, error) {
	var have installed
	var exists bool
	if err := q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, m.names.sql("outbox_meta")).Scan(&exists); err != nil || !exists {
		return have, err
	}
	var version, partitions *string
	err := q.QueryRow(ctx, m.names.sql(`SELECT (SELECT value FROM outbox_meta WHERE name = 'schema'), (SELECT value FROM outbox_meta WHERE name = 'partitions')`)).
		Scan(&version, &partitions)
	if err != nil {
		return have, err
	}
	if version == nil || partitions == nil {
		return have, &outbox.Error{
			Code: store.ErrSchemaMissing.Code, Detail: m.names.bare("outbox_meta") + " does not say its version",
			Hint: "this is not a table of ours: choose another schema or table prefix",
		}
	}
	if have.version, err = strconv.Atoi(*version); err == nil {
		have.partitions, err = strconv.Atoi(*partitions)
	}
	return have, err
}

func (m *Migrator) partitions(have installed) int {
	switch {
	case have.partitions > 0:
		return have.partitions
	case m.config.Partitions > 0:
		return m.config.Partitions
	}
	return DefaultPartitions
}

// pending returns the next step, or nil when there is none.
func (m *Migrator) pending(ctx context.Context, q querier) (*Migration, error) {
	have, err := m.version(ctx, q)
	if err != nil {
		return nil, err
	}
	steps := m.steps(m.partitions(have))
	switch {
	case have.version > len(steps):
		return nil, &outbox.Error{
			Code: store.ErrSchemaNew.Code, Detail: fmt.Sprintf("the schema has version %d, this program knows %d", have.version, len(steps)),
			Hint: "use a newer onward",
		}
	case have.partitions > 0 && m.config.Partitions > 0 && have.partitions != m.config.Partitions:
		return nil, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Detail: fmt.Sprintf("the outbox has %d partitions, not %d", have.partitions, m.config.Partitions),
			Hint: "leave the number out: an outbox keeps its partitions",
		}
	case have.version == len(steps):
		return nil, nil
	}
	return &steps[have.version], nil
}

// step runs the next step, if there is one.
func (m *Migrator) step(ctx context.Context, conn *pgx.Conn) (done bool, err error) {
	next, err := m.pending(ctx, conn)
	switch {
	case err != nil:
		return false, refusedBy(err, "schema "+m.names.schema)
	case next == nil:
		return true, nil
	case !next.Transaction:
		return false, m.stepAlone(ctx, conn, *next)
	}
	return false, m.transaction(ctx, conn, func(tx pgx.Tx) error {
		now, err := m.pending(ctx, tx) // another migrator may have been here before we had the lock
		if err != nil || now == nil || now.Version != next.Version {
			return err
		}
		if m.config.Report != nil {
			m.config.Report(*now)
		}
		if now.Version == 1 {
			if err := m.createSchema(ctx, tx); err != nil {
				return err
			}
		}
		if err := execAll(ctx, tx.Conn(), now.SQL); err != nil {
			return stepError(*now, err)
		}
		failpoint.Hit("postgres.migrate.step")
		return m.setVersion(ctx, tx.Conn(), now.Version)
	})
}

func (m *Migrator) setVersion(ctx context.Context, conn *pgx.Conn, version int) error {
	_, err := conn.Exec(ctx, m.names.sql(`INSERT INTO outbox_meta (name, value) VALUES ('schema', $1)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value`), strconv.Itoa(version))
	return err
}

// createSchema does not use IF NOT EXISTS, which asks for the right to create schemas even where the schema is there.
func (m *Migrator) createSchema(ctx context.Context, tx pgx.Tx) error {
	var exists bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, m.names.schema).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = tx.Exec(ctx, `CREATE SCHEMA "`+m.names.schema+`"`)
	return refusedBy(err, "schema "+m.names.schema)
}

// transaction runs f under the outbox's lock, with our own settings and nobody's search_path.
func (m *Migrator) transaction(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	for {
		locked := false
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`, m.lock()).Scan(&locked); err != nil || !locked {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('search_path', 'pg_catalog', true), set_config('statement_timeout', '0', true)`,
				strconv.FormatInt(m.config.LockTimeout.Milliseconds(), 10))
			if err != nil {
				return err
			}
			return f(tx)
		})
		if err != nil || locked {
			return err
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// tryUntil asks again and again: a session that waits for an advisory lock holds a snapshot, and a CREATE INDEX
// CONCURRENTLY of the lock's holder would wait for that snapshot to end.
func (m *Migrator) tryUntil(ctx context.Context, conn *pgx.Conn, sql string) error {
	for {
		var locked bool
		if err := conn.QueryRow(ctx, sql, m.lock()).Scan(&locked); err != nil || locked {
			return err
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// lock names the advisory lock of this outbox's migrations.
func (m *Migrator) lock() string { return "onward migrate " + m.names.schema + "." + m.names.prefix }

func (m *Migrator) onConnection(ctx context.Context, op string, f func(*pgx.Conn) error) error {
	err := m.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(c.Conn()) })
	if err == nil {
		return nil
	}
	if e := (*outbox.Error)(nil); errors.As(err, &e) && e.Op == "" {
		e.Op = op
		return err
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Print writes the SQL of all steps, for a person or another migration tool to run: each step with its locks. With
// Grants only the grants are written.
func (m *Migrator) Print(w io.Writer) error {
	if m.config.Grants {
		_, err := io.WriteString(w, m.config.Roles.in(m.names.grants()))
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %q;\n", m.names.schema)
	for _, s := range m.steps(m.partitions(installed{})) {
		fmt.Fprintf(&b, "\n-- %s\n", s)
		if s.Transaction {
			b.WriteString("BEGIN;\nSET LOCAL lock_timeout = " + strconv.FormatInt(m.config.LockTimeout.Milliseconds(), 10) + ";\nSET LOCAL search_path = pg_catalog;\n")
		}
		b.WriteString(strings.TrimRight(s.SQL, "\n") + "\n")
		b.WriteString(m.names.sql("INSERT INTO outbox_meta (name, value) VALUES ('schema', '"+strconv.Itoa(s.Version)+"') ON CONFLICT (name) DO UPDATE SET value = excluded.value;") + "\n")
		if s.Transaction {
			b.WriteString("COMMIT;\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// execAll runs one or more statements by the simple protocol, in the transaction that is open.
func execAll(ctx context.Context, conn *pgx.Conn, sql string) error {
	return conn.PgConn().Exec(ctx, sql).Close()
}

func stepError(s Migration, err error) error {
	return refusedBy(err, "step "+s.String()+" (locks: "+s.Locks+")")
}

// ErrForbidden: the database does not let this user do it.
var ErrForbidden = &outbox.Error{Code: "onward/forbidden", Detail: "the database's user lacks a right"}

// refusedBy says what the database's refusal of a part of a migration means for people.
func refusedBy(err error, part string) error {
	pg := (*pgconn.PgError)(nil)
	if !errors.As(err, &pg) || outbox.CodeOf(err) != "" {
		return err
	}
	switch pg.Code {
	case "55P03": // lock_not_available
		return &outbox.Error{
			Code: store.ErrStateConflict.Code, Detail: part + ": another transaction holds a lock that it needs", Err: err,
			Hint: "nothing of this step was done: run it again once that transaction has ended, or give it more time (--lock-timeout)",
		}
	case "42501": // insufficient_privilege
		return &outbox.Error{
			Code: ErrForbidden.Code, Detail: part + ": the database's user lacks a right", Err: err,
			Hint: "migrate as the owner of the tables; for a new outbox as a user with CREATE on the database, or on the schema where that exists",
		}
	case "42704": // undefined_object
		return &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Detail: part + ": a role does not exist", Err: err,
			Hint: "create the roles first: `onward migrate print --grants` prints the statements",
		}
	}
	return fmt.Errorf("%s: %w", part, err)
}
