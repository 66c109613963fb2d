package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// examine asks the server, as a relay with these settings would.
func examine(t *testing.T, pool *pgxpool.Pool, publish PublishWhen) doctor.Diagnosis {
	t.Helper()
	e, err := NewExaminer(pool, Config{PublishWhen: publish})
	if err != nil {
		t.Fatal(err)
	}
	e.old = 0
	d, err := e.Examine(t.Context(), doctor.Question{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Severity == 0 || f.Read == "" || f.Check == "" || f.Severity > doctor.Unknown && (f.Means == "" || f.Fix == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return d
}

// worst is the worst finding of a check.
func worst(d doctor.Diagnosis, check string) (f doctor.Finding) {
	for _, one := range d.Findings {
		if one.Check == check && one.Severity > f.Severity {
			f = one
		}
	}
	return f
}

// wantFinding compares a check's worst finding: its severity, a part of what was read and of the fix.
func wantFinding(t *testing.T, when string, d doctor.Diagnosis, check string, s doctor.Severity, read, fix string) {
	t.Helper()
	if f := worst(d, check); f.Severity != s || !strings.Contains(f.Read, read) || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s: %s is %v, %q, fix %q; want %v, %q, fix %q", when, check, f.Severity, f.Read, f.Fix, s, read, fix)
	}
}

// Each setting that can lose a commit changes the verdict when it is changed on the server, and back.
func TestTheVerdictOfAServerGoesByItsSettings(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	settings := []string{"max_prepared_transactions=5", "wal_level=logical", "full_page_writes=on"}
	server.start(settings...) // the tests' servers run without fsync
	g := server.rig(4)
	d := examine(t, g.Pool, Committed)
	wantFinding(t, "as the tests' servers run", d, "postgres-fsync", doctor.Unsafe, "fsync = off", "ALTER SYSTEM SET fsync = on")
	if d.Verdict() != doctor.Unsafe || !strings.Contains(d.Worth, "not a crash of its machine") {
		t.Errorf("the verdict without fsync is %v, %q", d.Verdict(), d.Worth)
	}
	server.stop()
	server.start("fsync=on", "max_prepared_transactions=5", "wal_level=logical")
	g.Pool.Reset()
	d = examine(t, g.Pool, Committed)
	if d.Verdict() != doctor.Note || !strings.Contains(d.Worth, "survives a crash and a power loss") || !strings.HasPrefix(d.Server, "PostgreSQL 1") {
		t.Errorf("as it should be, the verdict is %v, %q of %q: %+v", d.Verdict(), d.Worth, d.Server, d.Findings)
	}
	system := func(setting string) []string {
		return []string{"ALTER SYSTEM SET " + setting, "SELECT pg_reload_conf()"}
	}
	reset := func(name string) []string { return []string{"ALTER SYSTEM RESET " + name, "SELECT pg_reload_conf()"} }
	for _, c := range []struct {
		check     string
		do, undo  []string
		publish   PublishWhen
		severity  doctor.Severity
		read, fix string
	}{
		{"postgres-full-page-writes", system("full_page_writes = off"), reset("full_page_writes"), Committed, doctor.Unsafe, "full_page_writes = off", "full_page_writes = on; SELECT pg_reload_conf()"},
		{"postgres-autovacuum", system("autovacuum = off"), reset("autovacuum"), Committed, doctor.Warning, "autovacuum = off", "autovacuum = on"},
		{"postgres-synchronous-commit", system("synchronous_commit = off"), reset("synchronous_commit"), Committed, doctor.Unsafe, "synchronous_commit = off", "synchronous_commit = on"},
		{"postgres-synchronous-commit", system("synchronous_commit = off"), reset("synchronous_commit"), Flushed, doctor.Warning, "synchronous_commit = off", "synchronous_commit = on"},
		{"postgres-synchronous-commit", []string{`CREATE ROLE "a-writer"`, `ALTER ROLE "a-writer" SET synchronous_commit = off`}, []string{`DROP ROLE "a-writer"`}, Committed, doctor.Unsafe, `role "a-writer"`, `ALTER ROLE "a-writer" RESET`},
		{"postgres-sequence-cache", []string{"ALTER SEQUENCE outbox_messages_seq_seq CACHE 10"}, []string{"ALTER SEQUENCE outbox_messages_seq_seq CACHE 1"}, Committed, doctor.Unsafe, "CACHE 10", "CACHE 1;"},
		{"postgres-logged", []string{"ALTER TABLE outbox_messages SET UNLOGGED"}, []string{"ALTER TABLE outbox_messages SET LOGGED"}, Committed, doctor.Unsafe, "UNLOGGED", "SET LOGGED"},
		{"postgres-incarnation", []string{"ALTER TABLE outbox_incarnation SET LOGGED"}, []string{"ALTER TABLE outbox_incarnation SET UNLOGGED"}, Committed, doctor.Unsafe, "outbox_incarnation is LOGGED", "SET UNLOGGED"},
		{"postgres-prepared", []string{"BEGIN; CREATE TABLE held (i int); PREPARE TRANSACTION 'o''clock'"}, []string{"ROLLBACK PREPARED 'o''clock'"}, Committed, doctor.Warning, "o'clock", "ROLLBACK PREPARED 'o''clock'"},
		{"postgres-slots", []string{"SELECT pg_create_logical_replication_slot('left', 'test_decoding')"}, []string{"SELECT pg_drop_replication_slot('left')"}, Committed, doctor.Warning, "slot left: active = false", "pg_drop_replication_slot('left')"},
		{"postgres-slots", append(system("max_slot_wal_keep_size = '1GB'"), "SELECT pg_create_logical_replication_slot('left', 'test_decoding')"), append(reset("max_slot_wal_keep_size"), "SELECT pg_drop_replication_slot('left')"), Committed, doctor.Note, "slot left: active = false", "pg_drop_replication_slot('left')"},
		{"postgres-replicas", nil, nil, Replicated, doctor.Unsafe, "synchronous_standby_names = ''", "synchronous_standby_names = 'ANY 1"},
	} {
		before := worst(examine(t, g.Pool, Committed), c.check)
		run := func(all []string) {
			for _, sql := range all {
				if _, err := g.Pool.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s: %s: %v", c.check, sql, err)
				}
			}
			g.Pool.Reset() // a session has the settings that it began with
		}
		run(c.do)
		eventuallyFound(t, g.Pool, c.publish, c.check, c.severity)
		wantFinding(t, strings.Join(c.do, "; "), examine(t, g.Pool, c.publish), c.check, c.severity, c.read, c.fix)
		run(c.undo)
		eventuallyFound(t, g.Pool, Committed, c.check, before.Severity)
	}
}

// eventuallyFound waits until a setting has reached the server's processes.
func eventuallyFound(t *testing.T, pool *pgxpool.Pool, publish PublishWhen, check string, s doctor.Severity) {
	t.Helper()
	pgtest.Eventually(t, check+" is "+s.String(), func() bool { return worst(examine(t, pool, publish), check).Severity == s })
}

// A transaction that stays open is named, with its process; a user who may not see those of others learns how to.
func TestAnOpenTransactionIsFound(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start("fsync=on")
	g := server.rig(4)
	wantFinding(t, "before", examine(t, g.Pool, Committed), "postgres-transactions", doctor.OK, "no transaction", "")
	tx, err := g.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `CREATE ROLE plain LOGIN`); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, "while it is open", examine(t, g.Pool, Committed), "postgres-transactions", doctor.Warning, "idle in transaction", "SELECT pg_terminate_backend(")
	old, err := NewExaminer(g.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := old.Examine(t.Context(), doctor.Question{})
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, "as it is young", d, "postgres-transactions", doctor.OK, "5m0s", "")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := g.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	if _, err := other.Exec(t.Context(), `CREATE TABLE written (i int)`); err != nil {
		t.Fatal(err)
	}
	plain := pgtest.Connect(t, server.url, func(c *pgxpool.Config) { c.ConnConfig.User = "plain" })
	wantFinding(t, "of another user", examine(t, plain, Committed), "postgres-transactions", doctor.Unknown, "may not see", "GRANT pg_read_all_stats TO \"plain\"")
	g.Exec(t, `GRANT pg_read_all_stats TO plain`)
	wantFinding(t, "with the right to see it", examine(t, plain, Committed), "postgres-transactions", doctor.Warning, "idle in transaction", "pg_terminate_backend")
}

// Whether a fail-over can lose commits goes by the standbys that are there, and by whether commits wait for one.
func TestStandbysAreWhatAFailOverLosesOrNot(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start("fsync=on")
	g := server.rig(4)
	standby := server.standby("sb1")
	standby.start("fsync=on")
	eventuallyFound(t, g.Pool, Committed, "postgres-replicas", doctor.Note)
	pgtest.Eventually(t, "the standby is seen", func() bool {
		return strings.Contains(examine(t, g.Pool, Committed).Worth, "may lose the newest")
	})
	server.set(g, "synchronous_standby_names = 'sb1'")
	eventuallyFound(t, g.Pool, Committed, "postgres-replicas", doctor.OK)
	if d := examine(t, g.Pool, Committed); d.Verdict() != doctor.OK || !strings.Contains(d.Worth, "survives the loss of this server") {
		t.Errorf("with a synchronous standby the verdict is %v, %q", d.Verdict(), d.Worth)
	}
	server.set(g, "synchronous_commit = local")
	eventuallyFound(t, g.Pool, Committed, "postgres-replicas", doctor.Note)
	wantFinding(t, "where commits do not wait", examine(t, g.Pool, Committed), "postgres-replicas", doctor.Note, "synchronous: 1", "synchronous_commit = on")
	d := examine(t, pgtest.Connect(t, standby.url, nil), Committed)
	wantFinding(t, "of the standby itself", d, "postgres-primary", doctor.Unsafe, "pg_is_in_recovery() = true", "target_session_attrs=read-write")
	standby.stop()
	eventuallyFound(t, g.Pool, Committed, "postgres-replicas", doctor.Warning)
	wantFinding(t, "with the standby gone", examine(t, g.Pool, Committed), "postgres-replicas", doctor.Warning, "synchronous: 0", "synchronous_standby_names = ''")
}

// What a relay would refuse is said with all the rest, and tables need not be there.
func TestADatabaseWithoutTablesIsExamined(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	name := db.Schema + "_latin"
	db.Exec(t, `CREATE DATABASE "`+name+`" ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), `DROP DATABASE "`+name+`" WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	pool := pgtest.Connect(t, db.URL, func(c *pgxpool.Config) { c.ConnConfig.Database = name })
	d := examine(t, pool, Committed)
	wantFinding(t, "of another encoding", d, "postgres-encoding", doctor.Unsafe, "server_encoding = SQL_ASCII", "ENCODING 'UTF8'")
	wantFinding(t, "without tables", d, "postgres-tables", doctor.Unknown, "there is no table", "onward migrate up")
	wantFinding(t, "on one machine", d, "clock-skew", doctor.OK, "agrees", "")
	e, _ := NewExaminer(pool, Config{})
	if newest, err := e.Newest(t.Context(), 10); err != nil || newest != nil {
		t.Errorf("the newest messages without tables are %v, %v", newest, err)
	}
}

// The newest messages come first, with what templates go by.
func TestNewestMessagesAreSamples(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 4)
	for _, topic := range []string{"orders", "invoices", "parcels"} {
		db.Exec(t, sqlOf(db, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'k-' || $1, 'made', 'x')`), topic)
	}
	e, err := NewExaminer(db.Pool, Config{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	newest, err := e.Newest(t.Context(), 2)
	if err != nil || len(newest) != 2 || newest[0].Topic != "parcels" || newest[0].Key != "k-parcels" || newest[1].Topic != "invoices" || newest[0].Payload != nil {
		t.Errorf("the newest two are %+v, %v", newest, err)
	}
}

// No answer at all is an error, and not a finding.
func TestAServerThatDoesNotAnswerIsNotExamined(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start("fsync=on")
	g := server.rig(4)
	server.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if d, err := g.store.Examine(ctx, doctor.Question{}); err == nil {
		t.Errorf("a server that is down is %+v", d)
	}
}
