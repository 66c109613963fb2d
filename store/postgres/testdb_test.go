package postgres

import (
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
