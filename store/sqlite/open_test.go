package sqlite

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func TestWhatCannotBeOpenedSaysWhy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := filepath.Join(folder, "notes.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("these are notes, and no database at all\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path   string
		config FileConfig
		want   *outbox.Error
		words  string
	}{
		"missing folder":    {filepath.Join(folder, "none", "a.db"), FileConfig{Create: true}, ErrUnavailable, "the folder"},
		"missing file":      {filepath.Join(folder, "none.db"), FileConfig{}, ErrUnavailable, "no such file"},
		"folder":            {folder, FileConfig{}, ErrUnavailable, "it is a folder"},
		"file as a folder":  {filepath.Join(text, "a.db"), FileConfig{Create: true}, ErrUnavailable, "not a folder"},
		"another file":      {text, FileConfig{}, store.ErrDatabaseUnsupported, "file is not a database"},
		"device":            {"/dev/null", FileConfig{}, store.ErrDatabaseUnsupported, "no regular file"},
		"memory":            {":memory:", FileConfig{}, outbox.ErrConfigInvalid, "no file"},
		"nothing":           {"sqlite:", FileConfig{}, outbox.ErrConfigInvalid, "no file"},
		"unsafe":            {text, FileConfig{Synchronous: "off"}, outbox.ErrConfigInvalid, "synchronous"},
		"timeout":           {text, FileConfig{BusyTimeout: time.Microsecond}, outbox.ErrConfigInvalid, "busy timeout"},
		"setting":           {"sqlite:a.db?cache=shared", FileConfig{}, outbox.ErrConfigInvalid, `"cache"`},
		"URL's timeout":     {"sqlite:a.db?busy_timeout=fast", FileConfig{}, outbox.ErrConfigInvalid, "busy_timeout"},
		"URL's percent":     {"sqlite:a%.db", FileConfig{}, outbox.ErrConfigInvalid, "invalid URL escape"},
		"URL's synchronous": {"sqlite:a.db?synchronous=extra", FileConfig{}, outbox.ErrConfigInvalid, "synchronous"},
	} {
		db, err := OpenDB(t.Context(), c.path, c.config)
		if err == nil {
			_ = db.Close()
		}
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %v, want %s that says %q", name, err, c.want.Code, c.words)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "none.db")); !os.IsNotExist(err) {
		t.Errorf("a file that is missing was made: %v", err)
	}
}

func TestURLsNameAFileAndItsSettings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		path   string
		config FileConfig
	}{
		"orders.db":                                       {"orders.db", FileConfig{}},
		"sqlite:orders.db":                                {"orders.db", FileConfig{}},
		"sqlite:data/orders%20of%3Fme.db":                 {"data/orders of?me.db", FileConfig{}},
		"sqlite:/var/lib/orders.db":                       {"/var/lib/orders.db", FileConfig{}},
		"sqlite:///var/lib/orders.db":                     {"/var/lib/orders.db", FileConfig{}},
		"sqlite:o.db?synchronous=normal":                  {"o.db", FileConfig{Synchronous: "normal"}},
		"sqlite:o.db?busy_timeout=1m30s&synchronous=FULL": {"o.db", FileConfig{Synchronous: "FULL", BusyTimeout: 90 * time.Second}},
	} {
		var c FileConfig
		path, err := parseURL(text, &c)
		if err != nil || path != want.path || c != want.config {
			t.Errorf("%s: got %s, %+v, %v", text, path, c, err)
		}
	}
}

func TestConnectionsHaveTheirSettings(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	for _, c := range []struct {
		config            FileConfig
		synchronous, wait int
	}{{FileConfig{Create: true}, 2, 5000}, {FileConfig{Synchronous: "normal", BusyTimeout: time.Second}, 1, 1000}} {
		db, err := OpenDB(t.Context(), path, c.config)
		if err != nil {
			t.Fatal(err)
		}
		f := file{path, db}
		got := []any{
			one[string](t, f, `PRAGMA journal_mode`), one[int](t, f, `PRAGMA foreign_keys`),
			one[int](t, f, `PRAGMA synchronous`), one[int](t, f, `PRAGMA busy_timeout`),
		}
		if want := []any{"wal", 1, c.synchronous, c.wait}; !equal(got, want) {
			t.Errorf("%+v: got %v, want %v", c.config, got, want)
		}
		_ = db.Close()
	}
}

func equal(a, b []any) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// A connection that a call has used is as the pool made it.
func TestAdminLeavesConnectionsAsTheyWere(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.db.SetMaxOpenConns(1)
	if _, err := f.admin(t).Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, f, `PRAGMA busy_timeout`); got != 5000 {
		t.Errorf("busy timeout %d ms, want 5000", got)
	}
}

func TestStoresRefuseWhatTheyCannotUse(t *testing.T) {
	t.Parallel()
	raw := func(pragmas ...string) *sql.DB {
		t.Helper()
		db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "a.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		db.SetMaxIdleConns(1)
		for _, p := range append(pragmas, `CREATE TABLE t (a)`) {
			if _, err := db.ExecContext(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		return db
	}
	memory, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = memory.Close() })
	small := newOutbox(t)
	small.db.SetMaxOpenConns(2)
	changed := func(text string) *sql.DB { f := newOutbox(t); f.exec(t, text); return f.db }
	for name, c := range map[string]struct {
		db    *sql.DB
		want  *outbox.Error
		words string
	}{
		"UTF-16":       {raw(`PRAGMA encoding = 'UTF-16le'`, `PRAGMA journal_mode = WAL`), store.ErrDatabaseUnsupported, "UTF-16le"},
		"no WAL":       {raw(), store.ErrDatabaseUnsupported, "journal mode"},
		"in memory":    {memory, store.ErrDatabaseUnsupported, "not in a file"},
		"no tables":    {raw(`PRAGMA journal_mode = WAL`), store.ErrSchemaMissing, "no such table"},
		"small pool":   {small.db, outbox.ErrConfigInvalid, "2 connections"},
		"old":          {changed(`UPDATE outbox_meta SET value = '0' WHERE name = 'schema'`), store.ErrSchemaOld, "version 0"},
		"new":          {changed(`UPDATE outbox_meta SET value = '99' WHERE name = 'schema'`), store.ErrSchemaNew, "version 99"},
		"no version":   {changed(`DELETE FROM outbox_meta`), store.ErrSchemaMissing, "no schema version"},
		"8 partitions": {changed(`UPDATE outbox_meta SET value = '8' WHERE name = 'partitions'`), store.ErrSchemaMissing, "one partition"},
	} {
		_, err := Open(t.Context(), c.db, Config{TablePrefix: testPrefix})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) || outbox.Hint(err) == "" {
			t.Errorf("%s: got %v (hint %q), want %s that says %q", name, err, outbox.Hint(err), c.want.Code, c.words)
		}
	}
	if _, err := Open(t.Context(), memory, Config{TablePrefix: "Bad-"}); !errors.Is(err, outbox.ErrIdentifierInvalid) {
		t.Errorf("a bad prefix: %v", err)
	}
	if err := Migrate(t.Context(), memory, MigrateConfig{}); !errors.Is(err, store.ErrDatabaseUnsupported) {
		t.Errorf("migrate in memory: %v", err)
	}
}

func TestAFullDiskAndAReadOnlyFileSaySo(t *testing.T) {
	t.Parallel()
	f := newOutbox(t)
	f.fill(t, 10)
	st, s := f.joined(t, aRelay())
	page, err := s.Read(t.Context(), aRoom)
	if err != nil {
		t.Fatal(err)
	}
	w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
	write := func(pragma string) error {
		t.Helper()
		conn, err := f.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.ExecContext(t.Context(), pragma); err != nil {
			t.Fatal(err)
		}
		tx, err := conn.BeginTx(t.Context(), nil)
		if err != nil {
			return failed("begin", err)
		}
		defer func() { _ = tx.Rollback() }()
		ms := make([]outbox.Message, 20)
		for i := range ms {
			ms[i] = outbox.Message{Topic: "t", Type: "T", Payload: make([]byte, 100_000)}
		}
		_, err = w.WriteAll(t.Context(), tx, ms)
		return err
	}
	if err := write(`PRAGMA max_page_count = 1`); !errors.Is(err, ErrFull) || outbox.Hint(err) == "" { // SQLite takes the present size
		t.Errorf("a full disk: %v, want ErrFull with a hint", err)
	}
	if err := write(`PRAGMA query_only = on`); !errors.Is(err, ErrUnavailable) || outbox.Hint(err) == "" {
		t.Errorf("a read-only file: %v, want ErrUnavailable with a hint", err)
	}
	if _, err := st.writer.conn.ExecContext(t.Context(), `PRAGMA query_only = on`); err != nil {
		t.Fatal(err)
	}
	st2 := store.Settlement{Done: []store.Done{{Read: page.No, N: 10}}, Published: 10}
	if _, err := s.Settle(t.Context(), st2); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a settle: %v, want ErrUnavailable, and no reload", err)
	}
	if _, err := st.writer.conn.ExecContext(t.Context(), `PRAGMA query_only = off`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Settle(t.Context(), st2); err != nil {
		t.Errorf("a settle, repeated: %v", err)
	}
}
