package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/storetest"
)

func FuzzMessages(f *testing.F) {
	storetest.FuzzMessages(f, func(tb testing.TB) (store.Store, func(context.Context) (storetest.Tx, error)) {
		tb.Helper()
		file := newOutbox(tb)
		w := NewSQLWriter(WriterConfig{TablePrefix: testPrefix})
		return file.store(tb), func(ctx context.Context) (storetest.Tx, error) {
			tx, err := file.db.BeginTx(ctx, nil)
			if err != nil {
				return nil, err
			}
			return storetest.Transaction(w, tx,
				func(context.Context) error { return tx.Commit() }, func(context.Context) error { return tx.Rollback() }), nil
		}
	})
}

// A file is the one that was named, by its path as by its URL.
func FuzzFileNames(f *testing.F) {
	for _, name := range []string{"orders.db", "a b%20?#&.db", "file:x", "ü", "-", "~", "a:b.db", "%", "x?mode=memory", ":memory:"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || name == "." || name == ".." || len(name) > 100 || strings.ContainsAny(name, "/\x00") {
			return // no name of a file
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return // not here
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		escaped := strings.NewReplacer("%", "%25", "?", "%3F").Replace(path)
		for _, given := range []string{path, "sqlite:" + escaped, "sqlite://" + escaped, "/" + path} {
			db, err := OpenDB(t.Context(), given, FileConfig{Create: true})
			if err != nil {
				t.Fatalf("%q: %v", given, err)
			}
			_, err = db.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS a (x)`)
			if closed := db.Close(); err != nil || closed != nil {
				t.Fatalf("%q: %v, %v", given, err, closed)
			}
			if info, err := os.Stat(path); err != nil || info.Size() == 0 {
				t.Errorf("%q opened another file than %q: %v", given, path, err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A prefix that is accepted is part of names and nothing else, wherever our SQL has it; what it stands for comes back.
func FuzzTablePrefix(f *testing.F) {
	for _, prefix := range []string{"outbox_", "a", "_", "sqlite_", "Outbox_", "a;--", "ü", "$1", "\\1", "${1}", strings.Repeat("a", 31), strings.Repeat("a", 32), "a\n", "outbox_outbox_"} {
		f.Add(prefix)
	}
	word := regexp.MustCompile(`\boutbox_\w+`)
	const text = `SELECT outbox_messages.seq, ':outbox_x' FROM outbox_messages JOIN outbox_sinks ON my_outbox_x = 1`
	f.Fuzz(func(t *testing.T, prefix string) {
		n, err := newNames(prefix)
		if err != nil {
			return
		}
		if prefix == "" {
			prefix = "outbox_"
		}
		if len(prefix) > 31 || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || '0' <= prefix[0] && prefix[0] <= '9' {
			t.Errorf("%q was accepted", prefix)
		}
		want := word.ReplaceAllStringFunc(text, func(name string) string { return prefix + strings.TrimPrefix(name, "outbox_") })
		if got := n.sql(text); got != want {
			t.Errorf("%q: %s\nwant %s", prefix, got, want)
		}
	})
}
