package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, newOutbox(t)) })
}

// testPrefix shows that the tables' names are nobody's in particular.
const testPrefix = "shop_outbox_"

// file is an outbox of a test.
type file struct {
	path string
	db   *sql.DB // for looks and producers; transactions begin without the write lock
}

func newFile(t testing.TB) file {
	t.Helper()
	f := file{path: filepath.Join(t.TempDir(), "a name with 100%?.db")}
	f.db = f.open(t)
	return f
}

// open opens the file as another process would.
func (f file) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := OpenDB(t.Context(), f.path, FileConfig{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newOutbox(t testing.TB) file {
	t.Helper()
	f := newFile(t)
	if err := Migrate(t.Context(), f.db, MigrateConfig{TablePrefix: testPrefix}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f file) store(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.Context(), f.open(t), Config{TablePrefix: testPrefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (f file) admin(t testing.TB) *Admin {
	t.Helper()
	admin, err := NewAdmin(f.db, Config{TablePrefix: testPrefix})
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

// exec runs SQL of our notation.
func (f file) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	if _, err := f.db.ExecContext(t.Context(), names{testPrefix}.sql(text), args...); err != nil {
		t.Fatal(err)
	}
}

// one reads one value.
func one[T any](t testing.TB, f file, text string, args ...any) (v T) {
	t.Helper()
	if err := f.db.QueryRowContext(context.Background(), names{testPrefix}.sql(text), args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func harness(t *testing.T, f file) storetest.Harness {
	t.Helper()
	// Plain BEGIN: the suite opens transactions that have not written yet.
	producers, err := sql.Open("sqlite", deferred(f.path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producers.Close() })
	begin := func(ignore bool) func(*testing.T) storetest.Tx {
		w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix, IgnoreDuplicates: ignore})
		return func(t *testing.T) storetest.Tx {
			t.Helper()
			tx, err := producers.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return storetest.Transaction(w, tx,
				func(context.Context) error { return tx.Commit() }, func(context.Context) error { return tx.Rollback() })
		}
	}
	admin := f.admin(t)
	return storetest.Harness{
		Open:  func(t *testing.T) store.Store { return f.store(t) },
		Begin: begin(false), BeginIgnoring: begin(true), Admin: admin, Tracker: admin, OneWriter: true, RetainRows: retainRows,
		Position: func(t *testing.T, sink string, id outbox.ID) (position string) {
			t.Helper()
			err := f.db.QueryRowContext(t.Context(), names{testPrefix}.sql(`SELECT position FROM outbox_positions WHERE sink = ? AND id = ?`),
				sink, id.String()).Scan(&position)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Fatal(err)
			}
			return position
		},
		Pauses: func(t *testing.T, sink string, n int) {
			t.Helper()
			f.exec(t, `WITH RECURSIVE i(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i WHERE n < ? - 1)
				INSERT INTO outbox_pauses (sink, kind, name, reason, actor) SELECT ?, 'key', 'key-' || n, 'a test', 'ann' FROM i`, n, sink)
		},
		Audit: func(t *testing.T) (lines []storetest.AuditLine) {
			t.Helper()
			rows, err := f.db.QueryContext(context.Background(),
				names{testPrefix}.sql(`SELECT actor, action, sink, reason, coalesce(message_id, '') FROM outbox_audit ORDER BY id`))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var l storetest.AuditLine
				var id string
				if err := rows.Scan(&l.Actor, &l.Action, &l.Sink, &l.Reason, &id); err != nil {
					t.Fatal(err)
				}
				if id != "" { // a pause is of no message
					if l.ID, err = outbox.ParseID(id); err != nil {
						t.Fatal(err)
					}
				}
				lines = append(lines, l)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return lines
		},
	}
}

// deferred is a data source whose transactions begin without a lock, as they do in most programs.
func deferred(path string) string {
	c := FileConfig{Synchronous: "full", BusyTimeout: DefaultBusyTimeout}
	return strings.Replace(c.dsn(path), "_txlock=immediate", "_txlock=deferred", 1)
}
