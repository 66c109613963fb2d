package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/sqlite/internal/failpoint"
)

// MigrateConfig says which outbox to migrate. The zero value is the outbox_ tables.
type MigrateConfig struct {
	TablePrefix string // default outbox_
	// Partitions of the outbox: 1, which is the default too. Anything else is refused.
	Partitions int
	// LockTimeout is how long a step waits for the file's write lock; default 5 s. Nothing of it was done then: run it again.
	LockTimeout time.Duration
	// Report, where set, is called before each step runs.
	Report func(Migration)
}

// Migrator brings an outbox's schema up to this program's version, and says where it stands. Several may run at once:
// each step runs once. Safe for concurrent use.
type Migrator struct {
	db     *sql.DB
	names  names
	config MigrateConfig
	steps  []Migration // tests add steps
}

// Migrate is NewMigrator and Up.
func Migrate(ctx context.Context, db *sql.DB, c MigrateConfig) error {
	m, err := NewMigrator(db, c)
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// NewMigrator returns a Migrator that uses one connection of the pool at a time; the pool stays the caller's. Print needs
// none: nil serves. Errors: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid.
func NewMigrator(db *sql.DB, c MigrateConfig) (*Migrator, error) {
	n, err := newNames(c.TablePrefix)
	if err != nil {
		return nil, err
	}
	refuse := func(detail, hint string) (*Migrator, error) {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "sqlite configuration", Detail: detail, Hint: hint}
	}
	if c.Partitions != 0 && c.Partitions != 1 {
		return refuse(fmt.Sprintf("%d partitions", c.Partitions),
			"leave the number out: SQLite has one writer, so an outbox in a file has one partition; PostgreSQL shares the work over several")
	}
	if c.LockTimeout < 0 || c.LockTimeout > 0 && c.LockTimeout < time.Millisecond {
		return refuse("lock timeout "+c.LockTimeout.String(), "choose 1ms or more; 0 is 5s")
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = DefaultBusyTimeout
	}
	return &Migrator{db: db, names: n, config: c, steps: n.migrations()}, nil
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
func (m *Migrator) Status(ctx context.Context) (s MigrationStatus, err error) {
	err = m.onLine(ctx, "migration status", func(c *call) error {
		return c.read(func() error {
			s.Version, err = m.version(c)
			return err
		})
	})
	if s.Target = len(m.steps); s.Version > 0 {
		s.Partitions = 1
	}
	at := min(s.Version, len(m.steps))
	s.Applied, s.Pending = m.steps[:at:at], m.steps[at:]
	return s, err
}

// Up runs the steps that are missing, each in a transaction of its own, after it has set the file's journal mode to WAL,
// which the file remembers. What was done stays done when a later step fails.
//
// Errors: store.ErrDatabaseUnsupported (a SQLite before 3.37, another encoding than UTF-8, a database in memory, no database),
// store.ErrSchemaNew, ErrBusy (another connection held the file for LockTimeout: run it again), ErrFull, ErrUnavailable, or
// the driver's own.
func (m *Migrator) Up(ctx context.Context) error {
	return m.onLine(ctx, "migrate", func(c *call) error {
		var mode string
		err := c.again(func() error { return c.conn.QueryRowContext(c.ctx, `PRAGMA journal_mode = WAL`).Scan(&mode) })
		if err != nil {
			return err
		}
		if err := checkFile(c.ctx, c.conn); err != nil {
			return err
		}
		for {
			if done, err := m.step(c); err != nil || done {
				return err
			}
		}
	})
}

// step runs the next step, if there is one.
func (m *Migrator) step(c *call) (done bool, err error) {
	err = c.write(func() error {
		have, err := m.version(c)
		switch {
		case err != nil:
			return err
		case have > len(m.steps):
			return m.newer(have)
		case have == len(m.steps):
			done = true
			return nil
		}
		next := m.steps[have]
		if m.config.Report != nil {
			m.config.Report(next)
		}
		if _, err := c.conn.ExecContext(c.ctx, next.SQL); err != nil {
			return failed("step "+next.String(), err)
		}
		failpoint.Hit("sqlite.migrate.step")
		_, err = c.conn.ExecContext(c.ctx, m.names.sql(setVersion), strconv.Itoa(next.Version))
		return err
	})
	return done, err
}

const setVersion = `INSERT INTO outbox_meta (name, value) VALUES ('schema', ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`

func (m *Migrator) newer(have int) error {
	return &outbox.Error{
		Code: store.ErrSchemaNew.Code, Detail: fmt.Sprintf("the schema has version %d, this program knows %d", have, len(m.steps)),
		Hint: "use a newer onward",
	}
}

// version is what outbox_meta says; 0: nothing is installed.
func (m *Migrator) version(c *call) (int, error) {
	var tables int
	err := c.conn.QueryRowContext(c.ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`, m.names.sql("outbox_meta")).Scan(&tables)
	if err != nil || tables == 0 {
		return 0, err
	}
	var text sql.NullString
	if err := c.conn.QueryRowContext(c.ctx, m.names.sql(`SELECT (SELECT value FROM outbox_meta WHERE name = 'schema')`)).Scan(&text); err != nil {
		return 0, err
	}
	version, err := strconv.Atoi(text.String)
	if err != nil || version < 1 {
		return 0, &outbox.Error{
			Code: store.ErrSchemaMissing.Code, Detail: m.names.sql("outbox_meta") + " does not say its version",
			Hint: "this is not a table of ours: choose another table prefix",
		}
	}
	return version, nil
}

// onLine calls f with a connection of the pool.
func (m *Migrator) onLine(ctx context.Context, op string, f func(*call) error) error {
	l := newLine(m.db, m.names.statements("columns"), m.config.LockTimeout)
	defer l.giveBack()
	return failed(op, l.use(ctx, f))
}

// Print writes the SQL of all steps, for a person or another migration tool to run.
func (m *Migrator) Print(w io.Writer) error {
	var b strings.Builder
	b.WriteString("PRAGMA journal_mode = WAL;\n")
	for _, s := range m.steps {
		fmt.Fprintf(&b, "\n-- %s\nBEGIN IMMEDIATE;\n%s\n", s, strings.TrimRight(s.SQL, "\n"))
		b.WriteString(strings.Replace(m.names.sql(setVersion), "?", "'"+strconv.Itoa(s.Version)+"'", 1) + ";\nCOMMIT;\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
