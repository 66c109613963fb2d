package postgres

import (
	"os"
	"strconv"
	"testing"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// roles are those that grants.sql names.
var roles = []string{"onward_producer", "onward_relay", "onward_admin", "onward_viewer"}

// newOutbox gives the test an outbox of its own: a fresh schema, migrated, with the shipped grants.
func newOutbox(t testing.TB, partitions int) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	pgtest.EnsureRoles(t, db.Pool, roles...)
	err := Migrate(t.Context(), db.Pool, MigrateConfig{Schema: db.Schema, TablePrefix: db.Prefix, Partitions: partitions, Grants: true})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// sqlOf puts the outbox's names into a statement, as in our SQL files.
func sqlOf(db *pgtest.DB, text string) string {
	n, err := newNames(db.Schema, db.Prefix)
	if err != nil {
		panic(err)
	}
	return n.sql(text)
}

// sizeOf is how large a test runs: so that it fits, or as the environment says (docs/guarantees.md has the variables).
func sizeOf(t testing.TB, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number from 1", variable, text)
	}
	return n
}
