package postgres

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
	"github.com/onwardhq/onward/store/storetest"
)

// pooled is a pool through PgBouncer in transaction mode, or skips.
func pooled(t *testing.T, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	url := os.Getenv("ONWARD_TEST_PGBOUNCER_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_PGBOUNCER_URL is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
	}
	return pgtest.Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
}

// Everything works through a pooler that gives each transaction another session of the server: writers, relays, people. Only what
// hears that messages were committed has a direct way. (Rights are shown without a pooler: SET ROLE belongs to a session.)
func TestConformanceThroughAPooler(t *testing.T) {
	t.Parallel()
	pool := pooled(t, pgx.QueryExecModeCacheDescribe)
	if zone := os.Getenv("PGTZ"); zone != "" && pgtest.One[string](t, pool, `SHOW TimeZone`) != zone {
		t.Fatalf("the pooler takes the time zone %s from nobody", zone)
	}
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		db := newOutbox(t, 8)
		return harnessOf(t, db, pooled(t, pgx.QueryExecModeCacheDescribe), pool, func(t *testing.T) store.Store {
			t.Helper()
			s, err := Open(t.Context(), pooled(t, pgx.QueryExecModeCacheDescribe), Config{Schema: db.Schema, TablePrefix: db.Prefix, ListenURL: db.URL})
			if err != nil {
				t.Fatal(err)
			}
			return s
		})
	})
}

// A pool that prepares statements is refused before the first of them is lost, with the setting that helps.
func TestAPoolerThatKeepsNoStatementsIsRefused(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	for range 3 { // whatever an earlier try has left behind in the server's sessions
		_, err := Open(t.Context(), pooled(t, pgx.QueryExecModeCacheStatement), Config{Schema: db.Schema, TablePrefix: db.Prefix, ListenURL: db.URL})
		wantUnsupported(t, "Open", err, "does not keep prepared statements", "database.prepared_statements to false")
	}
}

// The tables can be made and validated through it.
func TestMigratingThroughAPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pooled(t, pgx.QueryExecModeCacheDescribe)
	if err := Migrate(t.Context(), pool, MigrateConfig{Schema: db.Schema, TablePrefix: db.Prefix}); err != nil {
		t.Fatal(err)
	}
	m, err := NewMigrator(pool, MigrateConfig{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	if faults, err := m.Validate(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("%v, %v", faults, err)
	}
}
