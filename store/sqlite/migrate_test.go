package sqlite

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func (f file) migrator(t testing.TB, c MigrateConfig) *Migrator {
	t.Helper()
	m, err := NewMigrator(f.db, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMigrationsRunOnce(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	var reported []string
	m := f.migrator(t, MigrateConfig{Partitions: 1, Report: func(s Migration) { reported = append(reported, s.String()) }})
	if s, err := m.Status(t.Context()); err != nil || s.Version != 0 || s.Partitions != 0 || len(s.Pending) != s.Target || s.Target != schemaVersion {
		t.Errorf("before: %+v, %v", s, err)
	}
	for range 2 {
		if err := m.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(reported) != schemaVersion || reported[0] != "0001_outbox" {
		t.Errorf("reported %v", reported)
	}
	if s, err := m.Status(t.Context()); err != nil || s.Version != schemaVersion || s.Partitions != 1 || len(s.Applied) != schemaVersion || len(s.Pending) != 0 {
		t.Errorf("after: %+v, %v", s, err)
	}
}

func TestSeveralMigrateAtOnce(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	var wg sync.WaitGroup
	for range 6 {
		m := file{f.path, f.open(t)}.migrator(t, MigrateConfig{})
		wg.Go(func() {
			if err := m.Up(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if faults, err := f.migrator(t, MigrateConfig{}).Validate(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("%v, %v", faults, err)
	}
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	for name, c := range map[string]struct {
		config MigrateConfig
		want   *outbox.Error
		words  string
	}{
		"partitions": {MigrateConfig{Partitions: 64}, outbox.ErrConfigInvalid, "64 partitions"},
		"prefix":     {MigrateConfig{TablePrefix: "Bad"}, outbox.ErrIdentifierInvalid, "Bad"},
		"SQLite's":   {MigrateConfig{TablePrefix: "sqlite_"}, outbox.ErrIdentifierInvalid, "sqlite_"},
		"timeout":    {MigrateConfig{LockTimeout: -1}, outbox.ErrConfigInvalid, "lock timeout"},
	} {
		if _, err := NewMigrator(f.db, c.config); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || outbox.Hint(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := f.migrator(t, MigrateConfig{TablePrefix: testPrefix})
	f.exec(t, `UPDATE outbox_meta SET value = '99' WHERE name = 'schema'`)
	_, invalid := m.Validate(t.Context())
	for _, err := range []error{m.Up(t.Context()), invalid} {
		if !errors.Is(err, store.ErrSchemaNew) {
			t.Errorf("a newer schema: %v", err)
		}
	}
	f.exec(t, `DELETE FROM outbox_meta`)
	if err := m.Up(t.Context()); !errors.Is(err, store.ErrSchemaMissing) {
		t.Errorf("a table that is not ours: %v", err)
	}
	if _, err := f.migrator(t, MigrateConfig{TablePrefix: "none_"}).Validate(t.Context()); !errors.Is(err, store.ErrSchemaMissing) {
		t.Errorf("no tables: %v", err)
	}
}

// What print writes makes the same outbox, in a shell.
func TestThePrintedSQLMakesTheOutbox(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	m := f.migrator(t, MigrateConfig{TablePrefix: "shop_"})
	var text bytes.Buffer
	if err := m.Print(&text); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "outbox_messages") || strings.Contains(text.String(), ":now") {
		t.Error("the printed SQL has names of the files")
	}
	if _, err := f.db.ExecContext(t.Context(), text.String()); err != nil {
		t.Fatal(err)
	}
	if faults, err := m.Validate(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("%v, %v", faults, err)
	}
}

func TestValidateFindsWhatChanged(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	m := f.migrator(t, MigrateConfig{TablePrefix: testPrefix})
	f.exec(t, `CREATE TABLE of_others (a); CREATE INDEX of_others_too ON outbox_messages (topic)`)
	if faults, err := m.Validate(t.Context()); err != nil || len(faults) > 0 {
		t.Fatalf("a whole outbox: %v, %v", faults, err)
	}
	f.exec(t, `DROP INDEX outbox_parked_due; CREATE INDEX outbox_parked_due ON outbox_parked (sink);
		DROP INDEX outbox_messages_id; DROP TRIGGER outbox_messages_fixed; DROP TABLE outbox_positions; DROP TABLE outbox_audit;
		ALTER TABLE outbox_keys ADD COLUMN more TEXT`)
	faults, err := m.Validate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, fault := range faults {
		got[fault.Object] = fault.Problem
		if fault.Repair == "" {
			t.Errorf("%s has no repair", fault.Object)
		}
		if kind, _, _ := strings.Cut(fault.Object, " "); kind != "table" {
			f.exec(t, fault.Repair)
		}
	}
	p := testPrefix
	want := map[string]string{
		"index " + p + "parked_due": "has another definition", "index " + p + "messages_id": "is missing",
		"trigger " + p + "messages_fixed": "is missing", "table " + p + "positions": "is missing", "table " + p + "audit": "is missing",
		"table " + p + "keys": "has another definition",
	}
	for object, problem := range want {
		if got[object] != problem {
			t.Errorf("%s: got %q, want %q", object, got[object], problem)
		}
	}
	if len(got) != len(want) {
		t.Errorf("faults %v", got)
	}
	if faults, err := m.Validate(t.Context()); err != nil || len(faults) != 3 {
		t.Errorf("after the repairs: %v, %v, want the three tables", faults, err)
	}
}

func TestTwoOutboxesInOneFile(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	if err := Migrate(t.Context(), f.db, MigrateConfig{}); err != nil {
		t.Fatal(err)
	}
	f.fill(t, 3)
	f.drain(t, newNoop(true, 3))
	other, err := NewAdmin(f.db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := f.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := NewSQLWriter(WriterConfig{}).Write(t.Context(), tx, outbox.Message{Topic: "t", Type: "T"})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	list, err := other.Messages(t.Context(), store.Filter{})
	if err != nil || len(list.Messages) != 1 || list.Messages[0].ID != receipt.ID || receipt.Seq != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if status, err := other.Status(t.Context()); err != nil || len(status.Sinks) != 0 {
		t.Errorf("%+v, %v", status, err)
	}
}
