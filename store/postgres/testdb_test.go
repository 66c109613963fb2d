package postgres

import (
	"testing"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// newOutbox gives the test an outbox of its own: a fresh schema, migrated.
func newOutbox(t testing.TB, partitions int) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	if err := Migrate(t.Context(), db.Pool, MigrateConfig{Schema: db.Schema, TablePrefix: db.Prefix, Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
	return db
}
