package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/sqlite"
)

// The stores that there are.
const (
	Postgres = "postgres"
	SQLite   = "sqlite"
)

// sinkName is the one sink of a run.
const sinkName = "chaos"

// operator is who acts in a run.
const operator = "chaos"

// people is what operators ask of an outbox.
type people interface {
	store.Admin
	store.Pauser
}

// database is the outbox of a run on a server, or in a file, of its own. What is asked here goes there directly.
type database struct {
	store  string
	dir    string          // of its files
	url    string          // direct
	server *harness.Server // PostgreSQL
	pool   *pgxpool.Pool   // PostgreSQL
	db     *sql.DB
	admin  people
}

// openDatabase makes one whose files are in dir.
func openDatabase(ctx context.Context, kind, dir string, partitions int) (*database, error) {
	d := &database{store: kind, dir: dir}
	if kind == SQLite {
		return d, d.openFile(ctx)
	}
	var err error
	// Small enough a log that a small disk holds it, and checkpoints within a run.
	d.server, err = harness.NewPostgres(dir, "max_wal_size=64MB", "min_wal_size=32MB", "shared_buffers=64MB", "checkpoint_timeout=30s", "restart_after_crash=on")
	if err != nil {
		return d, err
	}
	d.url = d.server.URL
	if err := d.server.Start(ctx); err != nil {
		return d, err
	}
	config, err := pgxpool.ParseConfig(d.url + "&application_name=" + operator)
	if err != nil {
		return d, err
	}
	config.MaxConns = 6
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return d, err
	}
	d.db = stdlib.OpenDBFromPool(d.pool)
	if err := postgres.Migrate(ctx, d.pool, postgres.MigrateConfig{Partitions: partitions}); err != nil {
		return d, err
	}
	if d.admin, err = postgres.NewAdmin(d.pool, postgres.Config{}); err != nil {
		return d, err
	}
	return d, d.createLedger(ctx)
}

func (d *database) openFile(ctx context.Context) (err error) {
	d.url = "sqlite:" + filepath.Join(d.dir, "outbox.db")
	if d.db, err = sqlite.OpenDB(ctx, d.url, sqlite.FileConfig{Create: true}); err != nil {
		return err
	}
	if err := sqlite.Migrate(ctx, d.db, sqlite.MigrateConfig{}); err != nil {
		return err
	}
	if d.admin, err = sqlite.NewAdmin(d.db, sqlite.Config{}); err != nil {
		return err
	}
	return d.createLedger(ctx)
}

// createLedger makes the ledger's tables. Its times are microseconds since 1970, by the writer's clock: everything is on one
// machine.
func (d *database) createLedger(ctx context.Context) error {
	for _, statement := range []string{
		`CREATE TABLE ledger (id TEXT NOT NULL PRIMARY KEY, partition_key TEXT NOT NULL, n BIGINT NOT NULL, digest TEXT NOT NULL, kind TEXT NOT NULL, at BIGINT NOT NULL)`,
		// Whoever numbers a message waits here for the transaction that has given its number to another one: also for one whose
		// client has gone.
		`CREATE UNIQUE INDEX ledger_number ON ledger (partition_key, n) WHERE partition_key <> ''`,
	} {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// ledger reads what was committed.
func (d *database) ledger(ctx context.Context) (all []Entry, err error) {
	rows, err := d.db.QueryContext(ctx, `SELECT id, partition_key, n, digest, kind, at FROM ledger`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var e Entry
		var at int64
		if err := rows.Scan(&e.ID, &e.Key, &e.N, &e.Digest, &e.Kind, &at); err != nil {
			return nil, err
		}
		e.At = time.UnixMicro(at).UTC()
		all = append(all, e)
	}
	return all, rows.Err()
}

// discards reads the audit.
func (d *database) discards(ctx context.Context) (ids []string, err error) {
	text := "message_id"
	if d.store == Postgres {
		text = "message_id::text"
	}
	rows, err := d.db.QueryContext(ctx, `SELECT `+text+` FROM outbox_audit WHERE action = 'discard'`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// waiting is how many messages have not been settled, or are parked or dead.
func (d *database) waiting(ctx context.Context) (backlog, parked, dead int64, err error) {
	status, err := d.admin.Status(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	for i := range status.Sinks {
		s := &status.Sinks[i]
		backlog, dead = backlog+s.Backlog, dead+s.Dead
		for _, n := range s.Parked {
			parked += n
		}
	}
	return backlog, parked, dead, nil
}

// deadRows are the dead rows of each table of the outbox, as PostgreSQL counts them.
func (d *database) deadRows(ctx context.Context) (map[string]int64, error) {
	rows, err := d.db.QueryContext(ctx, `SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE relname LIKE 'outbox%'`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	all := map[string]int64{}
	for rows.Next() {
		var table string
		var n int64
		if err := rows.Scan(&table, &n); err != nil {
			return nil, err
		}
		all[table] = n
	}
	return all, rows.Err()
}

// terminate ends up to n sessions of others, chosen by a number, and says whose they were.
func (d *database) terminate(ctx context.Context, n int, salt uint64) (whose []string, err error) {
	rows, err := d.db.QueryContext(ctx, `SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND application_name <> $1 AND pid <> pg_backend_pid()
		ORDER BY md5(pid::text || $2::text) LIMIT $3`, operator, fmt.Sprint(salt), n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var ended bool
		if err := rows.Scan(&name, &ended); err != nil {
			return nil, err
		}
		if ended {
			whose = append(whose, name)
		}
	}
	return whose, rows.Err()
}

// writersGone waits until no session of a writer is left: what one has sent last may be committed after it has ended.
func (d *database) writersGone(ctx context.Context) error {
	if d.store != Postgres {
		return nil
	}
	for {
		var left int
		err := d.db.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, writerName).Scan(&left)
		if err == nil && left == 0 {
			return nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%d sessions of writers are left: %w", left, ctx.Err())
		}
	}
}

// standing is where a message stands, in a line, for whoever looks into a run that failed.
func (d *database) standing(ctx context.Context, id string) string {
	list, err := d.admin.Messages(ctx, store.Filter{ID: parseID(id), Limit: 1})
	if err != nil {
		return err.Error()
	}
	if len(list.Messages) == 0 {
		return "not in the log"
	}
	m := list.Messages[0]
	var b strings.Builder
	fmt.Fprintf(&b, "partition %d, seq %d, transaction %d", m.Partition, m.Seq, m.Tx)
	for _, s := range m.States {
		fmt.Fprintf(&b, ", %s: %s %s %s", s.Sink, s.State, s.Reason, s.LastError)
	}
	return b.String()
}

func (d *database) close() {
	if d.db != nil {
		_ = d.db.Close()
	}
	if d.pool != nil {
		d.pool.Close()
	}
	if d.server != nil {
		_ = d.server.Stop(syscall.SIGKILL)
	}
}

// pause waits; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool { return harness.Pause(ctx, d) == nil }
