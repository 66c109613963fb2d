package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

func TestMigrateMakesAnOutboxThatTakesMessages(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 0)
	db.Exec(t, `INSERT INTO `+db.Table("messages")+` (topic, type, payload) VALUES ('orders', 'OrderPaid', '{}')`)
	if got := pgtest.One[string](t, db.Pool, `SELECT value FROM `+db.Table("meta")+` WHERE name = 'partitions'`); got != "64" {
		t.Errorf("partitions = %s, want 64", got)
	}
}

// stepNames are for comparing.
func stepNames(steps []Migration) string {
	var all []string
	for _, s := range steps {
		all = append(all, s.String())
	}
	return strings.Join(all, " ")
}

func TestUpRunsEachStepOnceAndStatusTellsThem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var reported []Migration
	m := migratorOf(t, db, MigrateConfig{Partitions: 8, Report: func(s Migration) { reported = append(reported, s) }})
	all := m.steps(8)
	status := func(version, partitions int) {
		t.Helper()
		s, err := m.Status(t.Context())
		if err != nil || s.Version != version || s.Target != len(all) || s.Partitions != partitions ||
			stepNames(s.Applied) != stepNames(all[:version]) || stepNames(s.Pending) != stepNames(all[version:]) {
			t.Errorf("%+v, %v, want version %d", s, err, version)
		}
	}
	status(0, 0)
	m.steps = func(int) []Migration { return m.names.migrations(8)[:1] }
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.steps = m.names.migrations
	status(1, 8)
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	status(len(all), 8)
	before := catalogOf(t, m)
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stepNames(reported) != stepNames(all) {
		t.Errorf("ran %s, want each step once", stepNames(reported))
	}
	if after := catalogOf(t, m); !maps.Equal(before, after) {
		t.Errorf("a second run changed\n%v\nto\n%v", before, after)
	}
}

func TestMigratorsAtOnceRunEachStepOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.EnsureRoles(t, db.Pool, roles...)
	db.Exec(t, `DROP SCHEMA `+db.Schema) // they make that too
	t.Cleanup(func() {                   // what drops it in the end wants it there
		_, _ = db.Pool.Exec(context.Background(), `CREATE SCHEMA IF NOT EXISTS `+db.Schema)
	})
	var mu sync.Mutex
	ran := map[string]int{}
	const migrators = 4
	errs := make(chan error, migrators)
	for range migrators {
		m := migratorOf(t, db, MigrateConfig{Grants: true, Report: func(s Migration) {
			mu.Lock()
			defer mu.Unlock()
			ran[s.String()]++
		}})
		m.steps = withIndexes(m, "seq")
		go func() { errs <- m.Up(t.Context()) }()
	}
	for range migrators {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	m := migratorOf(t, db, MigrateConfig{})
	want := map[string]int{"0004_indexes": 1}
	for _, s := range m.steps(64) {
		want[s.String()] = 1
	}
	if !maps.Equal(ran, want) {
		t.Errorf("ran %v, want %v", ran, want)
	}
}

// withIndexes adds a step that builds unique indexes over columns of the log, one by one, without blocking writers.
func withIndexes(m *Migrator, columns ...string) func(int) []Migration {
	text := "-- locks: none that writers wait for\n-- transaction: none\n"
	for _, c := range columns {
		text += "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS :outbox_messages_one_" + c + " ON outbox_messages (" + c + ");\n"
	}
	return func(partitions int) []Migration {
		return append(m.names.migrations(partitions), Migration{Version: 4, Name: "indexes", Locks: "none", SQL: m.names.expand(text, partitions)})
	}
}

func TestEachStepSaysItsLocks(t *testing.T) {
	t.Parallel()
	m, err := NewMigrator(nil, MigrateConfig{Schema: "shop", TablePrefix: "ob_"})
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := m.Print(&printed); err != nil {
		t.Fatal(err)
	}
	for _, s := range m.steps(64) {
		_, after, found := strings.Cut(printed.String(), "\n-- "+s.String()+"\n")
		said, _, _ := strings.Cut(after, "\nCREATE ")
		if want := "\n-- locks: " + strings.ReplaceAll(s.Locks, "ob_", `"shop".ob_`) + "\n"; s.Locks == "" || !found || !strings.Contains(said, want) {
			t.Errorf("%s: locks %q; printed before its first statement: %s", s, s.Locks, said)
		}
	}
	if strings.Contains(printed.String(), "outbox_") || strings.Contains(printed.String(), "public") {
		t.Error("another outbox's names are printed")
	}
}

// TestUpGivesUpOnALockedTable: a transaction that has written is open when a step needs the table.
func TestUpGivesUpOnALockedTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := migratorOf(t, db, MigrateConfig{LockTimeout: 50 * time.Millisecond})
	m.steps = func(int) []Migration { return m.names.migrations(64)[:1] }
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.steps = m.names.migrations
	writer, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write := sqlOf(db, `INSERT INTO outbox_messages (txid, seq, id, topic, type, payload) VALUES (pg_current_xact_id(), 1, gen_random_uuid(), 't', 't', '')`)
	if _, err := writer.Exec(t.Context(), write); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = m.Up(ctx)
	if !errors.Is(err, store.ErrStateConflict) || ctx.Err() != nil {
		t.Fatalf("%v", err)
	}
	for _, w := range []string{"migrate: step 0002_functions (locks: ACCESS EXCLUSIVE on " + db.Prefix + "messages", "another transaction holds a lock", "55P03"} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want %q", err, w)
		}
	}
	if hint := outbox.Hint(err); !strings.Contains(hint, "run it again") || !strings.Contains(hint, "--lock-timeout") {
		t.Errorf("hint %q", hint)
	}
	if s, err := m.Status(t.Context()); err != nil || s.Version != 1 {
		t.Errorf("%+v, %v, want version 1", s, err)
	}
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestAFailedConcurrentBuildIsRepaired: the second index of a step cannot be built, and leaves an invalid one behind.
func TestAFailedConcurrentBuildIsRepaired(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', ''), ('t', 't', '')`))
	db.Pool = pgtest.Connect(t, db.URL, func(c *pgxpool.Config) { c.MaxConns = 1 }) // so that we see what was left behind
	m := migratorOf(t, db, MigrateConfig{})
	m.steps = withIndexes(m, "seq", "topic")
	valid := func() string {
		return strings.Join(pgtest.All[string](t, db.Pool, `SELECT right(i.relname, 3) || ' ' || x.indisvalid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
			WHERE i.relnamespace = $1::regnamespace AND i.relname LIKE '%\_one\_%' ORDER BY 1`, db.Schema), ", ")
	}
	err := m.Up(t.Context())
	if sqlState(err) != "23505" || !strings.Contains(err.Error(), "step 0004_indexes") || valid() != "pic false, seq true" {
		t.Fatalf("%v, %s", err, valid())
	}
	if s, err := m.Status(t.Context()); err != nil || s.Version != 3 || stepNames(s.Pending) != "0004_indexes" {
		t.Errorf("%+v, %v", s, err)
	}
	locks := pgtest.One[int](t, db.Pool, `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`)
	settings := pgtest.One[string](t, db.Pool, `SELECT string_agg(name, ', ') FROM pg_settings WHERE name IN ('search_path', 'lock_timeout', 'statement_timeout') AND source = 'session'`+` HAVING count(*) > 0 UNION ALL SELECT '' LIMIT 1`)
	if locks != 0 || settings != "" {
		t.Errorf("left in the session: %d locks, settings %s", locks, settings)
	}
	db.Exec(t, sqlOf(db, `DELETE FROM outbox_messages WHERE seq = (SELECT max(seq) FROM outbox_messages)`))
	if err := m.Up(t.Context()); err != nil || valid() != "pic true, seq true" {
		t.Errorf("again: %v, %s", err, valid())
	}
	if s, err := m.Status(t.Context()); err != nil || s.Version != 4 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestWhatIsPrintedMakesWhatUpMakes by psql.
func TestWhatIsPrintedMakesWhatUpMakes(t *testing.T) {
	t.Parallel()
	db, other := pgtest.New(t), pgtest.New(t)
	pgtest.EnsureRoles(t, db.Pool, roles...)
	up, printed := migratorOf(t, db, MigrateConfig{Grants: true}), migratorOf(t, other, MigrateConfig{})
	if err := up.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := printed.Print(&text); err != nil {
		t.Fatal(err)
	}
	if err := migratorOf(t, other, MigrateConfig{Grants: true}).Print(&text); err != nil {
		t.Fatal(err)
	}
	psql(t, other, text.String())
	if a, b := catalogOf(t, up), catalogOf(t, printed); !maps.Equal(a, b) {
		for o := range a {
			if a[o] != b[o] {
				t.Errorf("%s: up makes %q, what is printed %q", o.title(), a[o], b[o])
			}
		}
		t.Errorf("up makes %d facts, what is printed %d", len(a), len(b))
	}
	if a, b := rightsOf(t, db), rightsOf(t, other); len(a) < 30 || !slices.Equal(a, b) {
		t.Errorf("up gives\n%s\nwhat is printed gives\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	if faults, err := printed.Validate(t.Context()); err != nil || faults != nil {
		t.Errorf("%+v, %v", faults, err)
	}
	if s, err := printed.Status(t.Context()); err != nil || len(s.Pending) != 0 || s.Partitions != 64 {
		t.Errorf("%+v, %v", s, err)
	}
}

// psql runs a script as a person does.
func psql(t testing.TB, db *pgtest.DB, script string) string {
	t.Helper()
	bin := os.Getenv(binVariable)
	if bin == "" {
		t.Skip(binVariable + ` is not set: it is the folder of psql, see dev/services`)
	}
	run := exec.CommandContext(t.Context(), filepath.Join(bin, "psql"), "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", db.URL)
	run.Stdin = strings.NewReader(script)
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	return string(out)
}

// rightsOf lists who may do what in the test's schema, without its owner.
func rightsOf(t testing.TB, db *pgtest.DB) []string {
	t.Helper()
	return pgtest.All[string](t, db.Pool, `
		WITH acls AS (
			SELECT 'schema' AS what, nspacl AS acl FROM pg_namespace WHERE nspname = $1
			UNION ALL SELECT c.relname, c.relacl FROM pg_class c WHERE c.relnamespace = $1::regnamespace
			UNION ALL SELECT c.relname || '.' || a.attname, a.attacl FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = $1::regnamespace
			UNION ALL SELECT p.proname, p.proacl FROM pg_proc p WHERE p.pronamespace = $1::regnamespace)
		SELECT concat_ws(' ', what, grantee::regrole, privilege_type) FROM acls, aclexplode(acl) WHERE grantee <> 'onward'::regrole::oid ORDER BY 1`, db.Schema)
}

func TestGrantsAreForRolesOfAnyName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	names := Roles{Producer: db.Schema + ` "Orders" service`, Relay: db.Schema + "-relay", Admin: db.Schema + "ü", Viewer: db.Schema + "_select"}
	for _, name := range names.list() {
		t.Cleanup(func() {
			role := pgx.Identifier{name}.Sanitize()
			_, _ = db.Pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		})
	}
	m := migratorOf(t, db, MigrateConfig{Grants: true, Roles: names})
	err := m.Up(t.Context())
	if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), "does not exist") || !strings.Contains(outbox.Hint(err), "migrate print --grants") {
		t.Errorf("without the roles: %v, hint %q", err, outbox.Hint(err))
	}
	var printed strings.Builder
	if err := m.Print(&printed); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(printed.String()) { // as its comment says
		if create, ok := strings.CutPrefix(line, "--   CREATE ROLE "); ok {
			db.Exec(t, "CREATE ROLE "+strings.Split(create, ";")[0])
		}
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert := sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', '')`)
	look := sqlOf(db, `SELECT payload FROM outbox_messages`)
	discard := sqlOf(db, `SELECT outbox_discard('s', '`+idOf(1)+`', 'why')`)
	settle := sqlOf(db, `DELETE FROM outbox_cursors`)
	for name, may := range map[string][]string{names.Producer: {insert}, names.Relay: {look, settle}, names.Admin: {look, discard}, names.Viewer: {look}} {
		pool := db.As(t, name)
		for _, sql := range []string{insert, look, discard, settle} {
			_, err := pool.Exec(t.Context(), sql)
			if denied := sqlState(err) == "42501"; denied == slices.Contains(may, sql) {
				t.Errorf("%s: %s: %v", name, sql, err)
			}
		}
		pool.Close()
	}
	if strings.Contains(strings.Join(rightsOf(t, db), "\n"), "onward_") {
		t.Errorf("the default roles have rights too: %v", rightsOf(t, db))
	}
	for _, name := range []string{"a\nb", "a\x00", strings.Repeat("x", 64)} {
		if _, err := NewMigrator(nil, MigrateConfig{Roles: Roles{Viewer: name}}); !errors.Is(err, outbox.ErrIdentifierInvalid) {
			t.Errorf("role %q: %v", name, err)
		}
	}
}

func TestTwoOutboxesSideBySide(t *testing.T) {
	t.Parallel()
	one := pgtest.New(t)
	one.Prefix = "ob_"
	two, three := *one, *pgtest.New(t)
	two.Prefix, three.Prefix = "ob_b_", "ob_" // the second's names begin with the first's prefix
	all := []*pgtest.DB{one, &two, &three}
	for i, db := range all {
		if err := migratorOf(t, db, MigrateConfig{Partitions: 1 << i}).Up(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, db := range all {
		for range i + 1 {
			db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', '')`))
			db.Exec(t, sqlOf(db, `SELECT outbox_send('t', 't', '')`))
		}
	}
	for i, db := range all {
		if n := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT max(seq) FROM outbox_messages`)); n != 2*(i+1) {
			t.Errorf("outbox %d has numbers up to %d, want %d", i, n, 2*(i+1))
		}
		m := migratorOf(t, db, MigrateConfig{})
		if faults, err := m.Validate(t.Context()); err != nil || faults != nil {
			t.Errorf("outbox %d: %+v, %v", i, faults, err)
		}
		if s, err := m.Status(t.Context()); err != nil || s.Partitions != 1<<i {
			t.Errorf("outbox %d: %+v, %v", i, s, err)
		}
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	db.Exec(t, sqlOf(db, `UPDATE outbox_meta SET value = '99' WHERE name = 'schema'`))
	m := migratorOf(t, db, MigrateConfig{})
	err := m.Up(t.Context())
	if !errors.Is(err, store.ErrSchemaNew) || !strings.Contains(err.Error(), "version 99, this program knows 3") || !strings.Contains(outbox.Hint(err), "newer onward") {
		t.Errorf("%v", err)
	}
	if s, err := m.Status(t.Context()); err != nil || s.Version != 99 || s.Target != 3 || len(s.Pending) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestPartitionsAreAPowerOfTwo(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 3, 63, 16383, 32768} {
		if _, err := NewMigrator(nil, MigrateConfig{Partitions: n}); !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(outbox.Hint(err), "power of two up to 16384") {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
	for _, n := range []int{1, 16384} {
		db := newOutbox(t, n)
		db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (topic, type, partition_key, payload) SELECT 't', 't', i::text, '' FROM generate_series(1, 2000) i`))
		if most := pgtest.One[int](t, db.Pool, sqlOf(db, `SELECT max(partition_id) FROM outbox_messages`)); most >= n || most < n/2 {
			t.Errorf("%d partitions: 2,000 keys use those up to %d", n, most)
		}
		if err := migratorOf(t, db, MigrateConfig{Partitions: n}).Up(t.Context()); err != nil {
			t.Errorf("the same number again: %v", err)
		}
		err := migratorOf(t, db, MigrateConfig{Partitions: 64}).Up(t.Context())
		if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("has %d partitions, not 64", n)) {
			t.Errorf("another number: %v", err)
		}
	}
}

func TestMigratingNeedsTheSchemaAndNothingMore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := db.Schema + "_owner"
	pool := db.As(t, role)
	t.Cleanup(func() {
		_, _ = db.Pool.Exec(context.Background(), `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role)
	})
	missing := db.Schema + "x"
	for _, schema := range []string{db.Schema, missing} {
		err := Migrate(t.Context(), pool, MigrateConfig{Schema: schema})
		if !errors.Is(err, ErrForbidden) || sqlState(err) != "42501" || !strings.Contains(err.Error(), "migrate: schema "+schema) || !strings.Contains(outbox.Hint(err), "CREATE") {
			t.Errorf("%s without rights: %v, hint %q", schema, err, outbox.Hint(err))
		}
	}
	db.Exec(t, `GRANT USAGE, CREATE ON SCHEMA `+db.Schema+` TO `+role)
	owned := *db
	owned.Pool = pool
	m := migratorOf(t, &owned, MigrateConfig{})
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if faults, err := m.Validate(t.Context()); err != nil || faults != nil {
		t.Errorf("%+v, %v", faults, err)
	}
	if _, err := pool.Exec(t.Context(), sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 't', '')`)); err != nil {
		t.Error(err)
	}
}

func TestLockTimeoutsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-time.Second, time.Microsecond} {
		if _, err := NewMigrator(nil, MigrateConfig{LockTimeout: d}); !errors.Is(err, outbox.ErrConfigInvalid) || outbox.Hint(err) == "" {
			t.Errorf("%v: %v", d, err)
		}
	}
}

// TestHotTablesAreTuned: each settle or heartbeat leaves a dead row in these; 0001_outbox.sql has the reasons.
func TestHotTablesAreTuned(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	for table, want := range map[string]string{
		"messages":   "autovacuum_vacuum_scale_factor=0.01 autovacuum_vacuum_insert_scale_factor=0.01 autovacuum_analyze_scale_factor=0.01",
		"relays":     "fillfactor=50 autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=200 autovacuum_vacuum_cost_delay=0",
		"partitions": "fillfactor=50 vacuum_truncate=off autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=500 autovacuum_vacuum_cost_delay=0",
		"cursors": "vacuum_truncate=off autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=500 autovacuum_vacuum_cost_delay=0" +
			" | vacuum_truncate=off autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=1000 autovacuum_vacuum_cost_delay=0",
		"parked": "autovacuum_vacuum_scale_factor=0.02 autovacuum_vacuum_threshold=500 autovacuum_analyze_scale_factor=0.02",
		"keys":   "fillfactor=70 autovacuum_vacuum_scale_factor=0.02 autovacuum_vacuum_threshold=500",
	} {
		got := pgtest.One[string](t, db.Pool, `SELECT concat_ws(' | ', array_to_string(c.reloptions, ' '), array_to_string(t.reloptions, ' '))
			FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = $1::regclass`, db.Table(table))
		if got != want {
			t.Errorf("%s: %s\nwant %s", table, got, want)
		}
	}
}
