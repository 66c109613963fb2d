package sqlite

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onwardhq/onward/doctor"
)

// What a power loss takes back goes by the connections' setting; a file without an outbox is looked at as well.
func TestTheVerdictOfAFileGoesByItsSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.db")
	check := func(when, path string, before func(e *Examiner), want map[string]doctor.Severity, worth string) {
		t.Helper()
		db, err := OpenDB(t.Context(), path, FileConfig{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		db.SetMaxOpenConns(1) // what is set here is what is read
		e, err := NewExaminer(db, Config{TablePrefix: testPrefix})
		if err != nil {
			t.Fatal(err)
		}
		before(e)
		d, err := e.Examine(t.Context(), doctor.Question{})
		if err != nil || !strings.HasPrefix(d.Server, "SQLite 3.") || !strings.Contains(d.Worth, worth) {
			t.Errorf("%s: %q is worth %q, %v; want %q", when, d.Server, d.Worth, err, worth)
		}
		found := map[string]doctor.Severity{}
		for _, f := range d.Findings {
			found[f.Check] = f.Severity
			if f.Read == "" || f.Severity > doctor.OK && (f.Means == "" || f.Fix == "") {
				t.Errorf("%s: incomplete: %+v", when, f)
			}
		}
		for name, s := range want {
			if found[name] != s {
				t.Errorf("%s: %s is %v, want %v", when, name, found[name], s)
			}
		}
	}
	nothing := func(*Examiner) {}
	pragma := func(text string) func(*Examiner) {
		return func(e *Examiner) {
			if _, err := e.db.ExecContext(t.Context(), text); err != nil {
				t.Error(err)
			}
		}
	}
	check("without tables", file, nothing, map[string]doctor.Severity{"sqlite-tables": doctor.Unknown, "sqlite-synchronous": doctor.OK, "sqlite-journal-mode": doctor.OK, "sqlite-encoding": doctor.OK, "sqlite-writers": doctor.Note}, "a crash and a power loss")
	check("migrated", file, func(e *Examiner) {
		if err := Migrate(t.Context(), e.db, MigrateConfig{TablePrefix: testPrefix}); err != nil {
			t.Error(err)
		}
	}, map[string]doctor.Severity{"sqlite-tables": 0, "sqlite-synchronous": doctor.OK}, "a power loss")
	check("normal", "sqlite:"+file+"?synchronous=normal", nothing, map[string]doctor.Severity{"sqlite-synchronous": doctor.Warning}, "not always a power loss")
	check("off", file, pragma(`PRAGMA synchronous = OFF`), map[string]doctor.Severity{"sqlite-synchronous": doctor.Unsafe}, "its process alone")
	other := filepath.Join(t.TempDir(), "b.db")
	plain, err := sql.Open("sqlite", other)
	if err != nil {
		t.Fatal(err)
	}
	plain.SetMaxOpenConns(1)
	for _, text := range []string{`PRAGMA encoding = 'UTF-16le'`, `CREATE TABLE a (b)`} {
		if _, err := plain.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	check("another encoding", other, nothing, map[string]doctor.Severity{"sqlite-encoding": doctor.Unsafe}, "")
	check("rollback journal", file, pragma(`PRAGMA journal_mode = DELETE`), map[string]doctor.Severity{"sqlite-journal-mode": doctor.Unsafe, "sqlite-synchronous": doctor.OK}, "")
}

func TestNewestMessagesAreSamples(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	s := f.store(t)
	defer func() { _ = s.Close() }()
	for _, topic := range []string{"orders", "parcels"} {
		if _, err := f.db.ExecContext(t.Context(), `INSERT INTO `+testPrefix+`messages (topic, partition_key, type, payload) VALUES (?, 'k', 'made', 'x')`, topic); err != nil {
			t.Fatal(err)
		}
	}
	newest, err := s.Newest(t.Context(), 1)
	if err != nil || len(newest) != 1 || newest[0].Topic != "parcels" || newest[0].Key != "k" || newest[0].ID.String() == "" || newest[0].Payload != nil {
		t.Errorf("the newest is %+v, %v", newest, err)
	}
	if d, err := s.Examine(t.Context(), doctor.Question{}); err != nil || d.Verdict() != doctor.Note {
		t.Errorf("examined as a relay does: %+v, %v", d, err)
	}
	e, err := NewExaminer(newFile(t).db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if newest, err := e.Newest(t.Context(), 1); newest != nil || err != nil {
		t.Errorf("without tables: %v, %v", newest, err)
	}
}
