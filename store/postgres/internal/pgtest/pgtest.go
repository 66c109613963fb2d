// Package pgtest gives each test a PostgreSQL schema of its own. It knows nothing of the outbox, so that every test of
// the store can use it; the tests migrate the schema themselves.
package pgtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// What the environment decides for a whole run.
const (
	// URLVariable names the server. Without it tests that need one skip.
	URLVariable = "ONWARD_TEST_POSTGRES_URL"
	// PrefixVariable is the table prefix of every outbox of the run; default outbox_.
	PrefixVariable = "ONWARD_TEST_TABLE_PREFIX"
)

// DB is a schema that exists for one test.
type DB struct {
	Pool   *pgxpool.Pool // small: tests run in parallel and share one server
	URL    string
	Schema string // unique, empty at first, dropped when the test ends
	Prefix string // table prefix of this run
}

// URL returns the server's URL, or skips the test and says how to get one.
func URL(t testing.TB) string {
	t.Helper()
	url := os.Getenv(URLVariable)
	if url == "" {
		t.Skip(URLVariable + ` is not set: start the server with: dev/services up postgres && eval "$(dev/services env)"`)
	}
	return url
}

// New makes an empty schema for the test and drops it when the test ends.
func New(t testing.TB) *DB {
	t.Helper()
	return NewOn(t, URL(t))
}

// NewOn is New on the server of this URL.
func NewOn(t testing.TB, url string) *DB {
	t.Helper()
	db := &DB{URL: url, Schema: "test_" + random(), Prefix: os.Getenv(PrefixVariable)}
	if db.Prefix == "" {
		db.Prefix = "outbox_"
	}
	db.Pool = Connect(t, db.URL, db.named)
	db.Exec(t, `CREATE SCHEMA `+pgx.Identifier{db.Schema}.Sanitize())
	t.Cleanup(func() { db.drop(t) })
	return db
}

// drop removes the schema by a pool of its own: the test may have closed its pool, or hold all its connections.
func (db *DB) drop(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		t.Errorf("connect to drop schema %s: %v", db.Schema, err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if t.Failed() { // its transactions may be open, and hold what is to be dropped
		_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, db.Schema)
	}
	if _, err := conn.Exec(ctx, `DROP SCHEMA `+pgx.Identifier{db.Schema}.Sanitize()+` CASCADE`); err != nil {
		t.Errorf("drop schema %s: %v", db.Schema, err)
	}
}

// named marks the test's connections, for people who look at the server, and for drop.
func (db *DB) named(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = db.Schema }

// Connect returns a small pool to the URL, closed when the test ends. tune, where given, may change its configuration.
func Connect(t testing.TB, url string, tune func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("parse %s: %v", URLVariable, err)
	}
	config.MaxConns, config.MinConns = 6, 0
	if tune != nil {
		tune(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// Standard is the pool for database/sql, closed when the test ends.
func Standard(t testing.TB, pool *pgxpool.Pool) *sql.DB {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// closePool does not wait for ever for a connection that a test forgot to release.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("a connection was not released")
	}
}

// As returns a pool whose connections have the rights of the role and nothing more. The role is made where it is
// missing: roles belong to the whole server, so they stay. tune may change the pool's configuration.
func (db *DB) As(t testing.TB, role string, tune ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	name := pgx.Identifier{role}.Sanitize()
	EnsureRoles(t, db.Pool, role)
	return Connect(t, db.URL, func(c *pgxpool.Config) {
		db.named(c)
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET ROLE `+name)
			return err
		}
		for _, f := range tune {
			f(c)
		}
	})
}

// EnsureRoles makes the roles that are missing, without login.
func EnsureRoles(t testing.TB, pool *pgxpool.Pool, roles ...string) {
	t.Helper()
	const missing = `SELECT name FROM unnest($1::text[]) name WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)`
	if len(All[string](t, pool, missing, roles)) == 0 {
		return
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtext('onward test roles'))`); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), missing, roles)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, name := range names {
			if _, err = tx.Exec(t.Context(), `CREATE ROLE `+pgx.Identifier{name}.Sanitize()+` NOLOGIN`); err != nil {
				return err
			}
		}
		return err
	})
	if err != nil {
		t.Fatalf("create roles %v: %v", roles, err)
	}
}

// Exec runs a statement, or several without arguments, and ends the test when one fails.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
}

// Table returns the qualified name of an outbox table, for example Table("messages").
func (db *DB) Table(name string) string {
	return pgx.Identifier{db.Schema, db.Prefix + name}.Sanitize()
}

// One returns the only value of a query and ends the test when there is none.
func One[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	return value
}

// All returns the values of a query with one column.
func All[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	return values
}

// Eventually polls until the condition holds and ends the test when it does not within ten seconds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline, tick := time.After(10*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("did not happen within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

func random() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
