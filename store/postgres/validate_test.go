package postgres

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

var update = flag.Bool("update", false, "write catalog.txt")

// migratorOf returns a Migrator of the test's schema.
func migratorOf(t testing.TB, db *pgtest.DB, c MigrateConfig) *Migrator {
	t.Helper()
	c.Schema, c.TablePrefix = db.Schema, db.Prefix
	m, err := NewMigrator(db.Pool, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// catalogOf is what the server says of an outbox, in the notation of our SQL files where the names allow it.
func catalogOf(t testing.TB, m *Migrator) map[object]string {
	t.Helper()
	var have map[object]string
	err := pgx.BeginFunc(t.Context(), m.pool, func(tx pgx.Tx) (err error) {
		have, err = m.catalog(t.Context(), tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	canonical := strings.NewReplacer(m.names.schema+"."+m.names.prefix, "outbox_", `"`+m.names.schema+`".`+m.names.prefix, "outbox_",
		m.names.prefix, ":outbox_", "(64 - 1)", "(:partitions - 1)")
	all := map[object]string{}
	for o, facts := range have {
		all[object{o.kind, canonical.Replace(o.name)}] = canonical.Replace(facts)
	}
	return all
}

// TestTheCatalogIsKnown: what the steps make is what Validate wants.
func TestTheCatalogIsKnown(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Prefix = "qz_" // no other word begins with it
	m := migratorOf(t, db, MigrateConfig{Partitions: 64})
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	have := catalogOf(t, m)
	var text strings.Builder
	text.WriteString("What the steps make; go test -run TestTheCatalogIsKnown -update writes it.\n")
	for _, kind := range []string{"table", "sequence", "column", "constraint", "index", "function", "view", "trigger", "setting"} {
		for _, o := range slices.SortedFunc(maps.Keys(have), func(a, b object) int { return strings.Compare(a.name, b.name) }) {
			if o.kind == kind {
				fmt.Fprintf(&text, "%s\t%s\t%s\n", kind, o.name, have[o])
			}
		}
	}
	if *update {
		if err := os.WriteFile("catalog.txt", []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := text.String(); got != catalogText {
		const help = "go test -run TestTheCatalogIsKnown -update writes it anew"
		known := strings.Split(catalogText, "\n")
		for line := range strings.SplitSeq(got, "\n") {
			if !slices.Contains(known, line) {
				t.Errorf("catalog.txt does not have this (%s): %s", help, line)
			}
		}
		t.Errorf("catalog.txt differs (%s): %d lines, want %d", help, len(known), strings.Count(got, "\n")+1)
	}
	wanted := m.names.wanted(64)
	if len(wanted) != len(have) {
		t.Errorf("%d facts are wanted, the server has %d", len(wanted), len(have))
	}
	steps := m.steps(64)
	for _, w := range wanted {
		if w.kind == "column" || w.kind == "constraint" {
			continue // as of their tables
		}
		if m.repair(steps, w, true) == "" || m.repair(steps, w, false) == "" {
			t.Errorf("%s: no repair", w.title())
		}
	}
}

// TestValidateFindsWhatChanged breaks an outbox in one place after the other; where the repair is SQL it is run, and all is
// well again.
func TestValidateFindsWhatChanged(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 16)
	m := migratorOf(t, db, MigrateConfig{})
	faults := func() []Fault {
		t.Helper()
		faults, err := m.Validate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return faults
	}
	if f := faults(); f != nil {
		t.Fatalf("faults of a whole outbox: %+v", f)
	}
	db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (topic, type, payload) VALUES ('t', 'same', ''), ('t', 'same', '')`))
	for _, c := range []struct{ sql, object, problem, undo string }{
		{`DROP INDEX outbox_messages_txid_seq`, "index messages_txid_seq", "is missing", ""},
		{`DROP INDEX outbox_parked_due; CREATE INDEX :outbox_parked_due ON outbox_parked (due_at)`, "index parked_due", "it should be", ""},
		{`DROP TRIGGER :outbox_stamp ON outbox_messages`, "trigger stamp", "is missing", ""},
		{`ALTER TABLE outbox_messages DISABLE TRIGGER :outbox_stamp`, "trigger stamp", "DISABLED", ""},
		{`DROP TRIGGER :outbox_audit_fixed ON outbox_audit; CREATE TRIGGER :outbox_audit_fixed BEFORE UPDATE ON outbox_audit FOR EACH STATEMENT EXECUTE FUNCTION outbox_refuse()`, "trigger audit_fixed", "it should be", ""},
		{`ALTER SEQUENCE outbox_messages_seq_seq CACHE 20`, "sequence messages_seq_seq", "CACHE 20", ""},
		{`ALTER SEQUENCE outbox_messages_seq_seq INCREMENT 2`, "sequence messages_seq_seq", "INCREMENT 2", ""},
		{`ALTER TABLE outbox_relays RESET (fillfactor)`, "setting relays fillfactor", "is missing", ""},
		{`CREATE OR REPLACE FUNCTION outbox_uuid7() RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS 'BEGIN RETURN gen_random_uuid(); END'`, "function uuid7", "another body", "uuid7"},
		{`ALTER FUNCTION outbox_stamp() SECURITY INVOKER`, "function stamp", "SECURITY DEFINER", "stamp"},
		{`ALTER TABLE outbox_messages DROP CONSTRAINT :outbox_messages_headers_check; DROP FUNCTION outbox_headers_valid(jsonb)`, "function headers_valid", "is missing", "headers_valid"},
		{`ALTER TABLE outbox_messages DROP CONSTRAINT :outbox_messages_headers_check, ADD CONSTRAINT :outbox_messages_headers_check CHECK (headers = '{}')`, "constraint messages_headers_check", "it should be", `ALTER TABLE outbox_messages
			DROP CONSTRAINT :outbox_messages_headers_check, ADD CONSTRAINT :outbox_messages_headers_check CHECK (headers = '{}' OR outbox_headers_valid(headers))`},
		{`ALTER TABLE outbox_messages ALTER id DROP DEFAULT`, "column messages.id", "it should be uuid NOT NULL DEFAULT", `ALTER TABLE outbox_messages ALTER id SET DEFAULT outbox_uuid7()`},
		{`ALTER VIEW outbox_status RENAME COLUMN lag TO delay`, "view status", "it should be", `ALTER VIEW outbox_status RENAME COLUMN delay TO lag`},
		{`ALTER TABLE outbox_messages ALTER COLUMN created_at SET DEFAULT now()`, "column messages.created_at", "now()", `ALTER TABLE outbox_messages ALTER COLUMN created_at SET DEFAULT clock_timestamp()`},
		{`ALTER TABLE outbox_incarnation SET LOGGED`, "table incarnation", "is logged", `ALTER TABLE outbox_incarnation SET UNLOGGED`},
		{`ALTER TABLE outbox_positions RENAME TO moved`, "table positions", "is missing", `ALTER TABLE "` + db.Schema + `".moved RENAME TO :outbox_positions`},
	} {
		db.Exec(t, sqlOf(db, c.sql))
		kind, name, _ := strings.Cut(c.object, " ")
		found := faults()
		at := slices.IndexFunc(found, func(f Fault) bool { return f.Object == kind+" "+db.Prefix+name })
		if at < 0 || !strings.Contains(found[at].Problem, c.problem) || len(found) > 2 {
			t.Fatalf("%s: %+v, want %s %s", c.sql, found, c.object, c.problem)
		}
		switch {
		case c.undo == "":
			for _, statement := range strings.Split(found[at].Repair, "; ") {
				db.Exec(t, statement)
			}
		case regexp.MustCompile(`^\w+$`).MatchString(c.undo): // a function: as the repair says
			if !strings.Contains(found[at].Repair, "step 0002_functions of `onward migrate print` as CREATE OR REPLACE") {
				t.Errorf("%s: repair %q", c.sql, found[at].Repair)
			}
			db.Exec(t, createFunction(t, m, c.undo))
			if c.undo == "headers_valid" {
				db.Exec(t, sqlOf(db, `ALTER TABLE outbox_messages ADD CONSTRAINT :outbox_messages_headers_check CHECK (headers = '{}' OR outbox_headers_valid(headers))`))
			}
		default:
			if !strings.Contains(found[at].Repair, "`onward migrate print`") {
				t.Errorf("%s: repair %q", c.sql, found[at].Repair)
			}
			db.Exec(t, sqlOf(db, c.undo))
		}
		if f := faults(); f != nil {
			t.Fatalf("%s, then %s: %+v", c.sql, found[at].Repair, f)
		}
	}
}

// createFunction is a step's CREATE FUNCTION as CREATE OR REPLACE.
func createFunction(t testing.TB, m *Migrator, name string) string {
	t.Helper()
	form := regexp.MustCompile(`(?s)CREATE FUNCTION \S*\b` + m.names.prefix + name + `\(.*?AS \$\$.*?\$\$;`)
	for _, s := range m.steps(64) {
		if found := form.FindString(s.SQL); found != "" {
			return strings.Replace(found, "CREATE ", "CREATE OR REPLACE ", 1)
		}
	}
	t.Fatalf("no function %s", name)
	return ""
}

func TestValidateLeavesAloneWhatOthersAdded(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 64)
	db.Exec(t, sqlOf(db, `ALTER TABLE outbox_messages ADD COLUMN theirs int;
		CREATE INDEX theirs ON outbox_messages (type);
		CREATE INDEX :outbox_messages_theirs ON outbox_messages (topic);
		CREATE TRIGGER theirs AFTER INSERT ON outbox_keys FOR EACH STATEMENT EXECUTE FUNCTION outbox_refuse();
		CREATE TABLE outbox_theirs (a int);
		ALTER TABLE outbox_relays SET (fillfactor = 60, autovacuum_vacuum_threshold = 50)`))
	viewer := *db
	// A viewer reads outbox_meta, and nothing else is needed. Its settings make the server write everything in another way.
	viewer.Pool = db.As(t, "onward_viewer", func(c *pgxpool.Config) {
		maps.Copy(c.ConnConfig.RuntimeParams, map[string]string{
			"search_path": db.Schema, "TimeZone": "Asia/Tokyo", "DateStyle": "German", "quote_all_identifiers": "on",
		})
	})
	if faults, err := migratorOf(t, &viewer, MigrateConfig{}).Validate(t.Context()); err != nil || faults != nil {
		t.Errorf("%+v, %v", faults, err)
	}
}

func TestValidateRefusesAnotherVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := migratorOf(t, db, MigrateConfig{})
	want := func(code *outbox.Error, hint string) {
		t.Helper()
		if faults, err := m.Validate(t.Context()); !errors.Is(err, code) || !strings.Contains(outbox.Hint(err), hint) || faults != nil {
			t.Errorf("%+v, %v, hint %q, want %s", faults, err, outbox.Hint(err), code.Code)
		}
	}
	want(store.ErrSchemaMissing, "onward migrate up")
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, sqlOf(db, `UPDATE outbox_meta SET value = '1' WHERE name = 'schema'`))
	want(store.ErrSchemaOld, "onward migrate up")
	db.Exec(t, sqlOf(db, `UPDATE outbox_meta SET value = '99' WHERE name = 'schema'`))
	want(store.ErrSchemaNew, "newer onward")
}
