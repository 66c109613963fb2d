package failpoints

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/sqlite"
)

const messages = 400

// database is a stage on PostgreSQL.
type database struct {
	*stage
	pool *pgxpool.Pool
	work *harness.Workload
	done chan error // of the workload; nil: there is none
}

// schemaOf makes a schema of the stage's own, and configures the program for it.
func (s *stage) schemaOf(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := needed(t, "ONWARD_TEST_POSTGRES_URL")
	pool, err := pgxpool.New(t.Context(), url)
	s.must(err)
	_, err = pool.Exec(t.Context(), "CREATE SCHEMA "+s.name)
	s.must(err)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "DROP SCHEMA "+s.name+" CASCADE")
		pool.Close()
	})
	s.configure(fmt.Sprintf("  url: %q\n  schema: %s", url, s.name), "")
	return pool
}

func onPostgres(t *testing.T, settings string) *database {
	t.Helper()
	s := newStage(t)
	pool := s.schemaOf(t)
	s.must(postgres.Migrate(t.Context(), pool, postgres.MigrateConfig{Schema: s.name, Partitions: 8}))
	s.configure(fmt.Sprintf("  url: %q\n  schema: %s", needed(t, "ONWARD_TEST_POSTGRES_URL"), s.name), settings)
	w := &harness.Workload{
		Pool: pool, Schema: s.name, Prefix: "outbox_", Topic: s.topic, Keys: 40, Writers: 2, Messages: messages, Payload: 32,
		Pause: 4 * time.Millisecond, Hold: 2 * time.Millisecond, Seed: 5,
	}
	s.must(w.CreateLedger(t.Context()))
	return &database{stage: s, pool: pool, work: w}
}

// load writes messages, beside what follows.
func (d *database) load() {
	d.done = make(chan error, 1)
	go func() { d.done <- d.work.Run(d.t.Context()) }()
}

// written waits for the writers, and returns what was committed.
func (d *database) written() []harness.Entry {
	d.t.Helper()
	if d.done != nil {
		d.must(<-d.done)
	}
	ledger, err := d.work.Ledger(d.t.Context())
	d.must(err)
	return ledger
}

// schedule writes n messages, each of a key of its own, whose time is ahead.
func (d *database) schedule(n int) {
	d.t.Helper()
	for i := range n {
		d.must(pgx.BeginFunc(d.t.Context(), d.pool, func(tx pgx.Tx) error {
			id, key := outbox.NewID().String(), fmt.Sprint("later-", i)
			_, err := tx.Exec(d.t.Context(), `INSERT INTO `+d.name+`.outbox_messages (id, topic, type, partition_key, payload, available_at)
				VALUES ($1, $2, 'Made', $3, '', clock_timestamp() + interval '1 hour')`, id, d.topic, key)
			if err != nil {
				return err
			}
			_, err = tx.Exec(d.t.Context(), `INSERT INTO `+d.name+`.ledger (id, key, n) VALUES ($1, $2, 1)`, id, key)
			return err
		}))
	}
}

// dueNow lets what is scheduled be due.
func (d *database) dueNow() {
	d.t.Helper()
	_, err := d.pool.Exec(d.t.Context(), `UPDATE `+d.name+`.outbox_parked SET due_at = clock_timestamp()`)
	d.must(err)
}

func (d *database) count(table string) (n int) {
	d.t.Helper()
	d.must(d.pool.QueryRow(d.t.Context(), `SELECT count(*) FROM `+d.name+`.outbox_`+table).Scan(&n))
	return n
}

// untilParked waits until so many messages are parked.
func (d *database) untilParked(n int, by *process) error {
	d.until(fmt.Sprintf("%d messages are parked", n), func() bool { return d.count("parked") == n })
	return d.alive(by)
}

func (s *stage) until(what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// inFile is a stage on an SQLite file that is written to. written waits for the writer, and returns what was committed.
func inFile(t *testing.T) (s *stage, written func() []harness.Entry) {
	t.Helper()
	s = newStage(t)
	file := filepath.Join(t.TempDir(), "shop.db")
	s.configure("  url: sqlite:"+file+"?synchronous=normal", "") // a process that is killed loses nothing in either
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{Create: true, Synchronous: "normal"})
	s.must(err)
	t.Cleanup(func() { _ = db.Close() })
	s.must(sqlite.Migrate(t.Context(), db, sqlite.MigrateConfig{}))
	var ledger []harness.Entry
	done := make(chan error, 1)
	go func() {
		var err error
		tick := time.NewTicker(5 * time.Millisecond) // others write as well
		defer tick.Stop()
		for ; len(ledger) < messages && err == nil; <-tick.C {
			var added []harness.Entry
			added, err = write(t.Context(), db, s.topic, len(ledger), 10)
			ledger = append(ledger, added...)
		}
		done <- err
	}()
	return s, func() []harness.Entry {
		t.Helper()
		s.must(<-done)
		return ledger
	}
}

// write commits the next n messages of the file.
func write(ctx context.Context, db *sql.DB, topic string, from, n int) (added []harness.Entry, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	for i := from; i < from+n; i++ {
		e := harness.Entry{ID: outbox.NewID().String(), Key: fmt.Sprint("key-", i%40), N: i/40 + 1}
		_, err := tx.ExecContext(ctx, `INSERT INTO outbox_messages (id, topic, type, partition_key, payload) VALUES (?, ?, 'Made', ?, '')`, e.ID, topic, e.Key)
		if err != nil {
			return nil, err
		}
		added = append(added, e)
	}
	return added, tx.Commit()
}
