package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// What SQLite says of a file, by codes of our own. Whoever gets one of them may do it again as it is: nothing of it was done.
var (
	// ErrBusy: other connections held the file for the whole of the busy timeout.
	ErrBusy = &outbox.Error{Code: "onward/database-busy", Detail: "another connection holds the database"}
	// ErrFull: the disk is full, or the file has reached PRAGMA max_page_count.
	ErrFull = &outbox.Error{Code: "onward/database-full", Detail: "the database cannot grow: the disk is full"}
	// ErrUnavailable: the file cannot be opened, read or written.
	ErrUnavailable = &outbox.Error{Code: "onward/database-unavailable", Detail: "the database's file cannot be used"}
)

// meanings are texts of SQLite itself, which every driver passes on; error codes each has in a way of its own.
var meanings = []struct {
	text string
	is   *outbox.Error
	hint string
}{
	{"database is locked", ErrBusy, "a transaction of another connection is open: it is repeated; look for one that stays open (docs/sqlite.md)"},
	{"database table is locked", ErrBusy, "do not share SQLite's cache between connections"},
	{"database schema is locked", ErrBusy, "do not share SQLite's cache between connections"},
	{"database or disk is full", ErrFull, "free some space on the disk, or raise PRAGMA max_page_count; what was committed is safe"},
	{"attempt to write a readonly database", ErrUnavailable, "the file, its -wal or -shm file or its folder cannot be written by this user"},
	{"readonly database", ErrUnavailable, "the file, its -wal or -shm file or its folder cannot be written by this user"},
	{"unable to open database file", ErrUnavailable, "look whether the file and its folder are there and this user may write to both"},
	{"disk I/O error", ErrUnavailable, "look at the disk and at the system's log; network file systems are not supported"},
	{"file is not a database", store.ErrDatabaseUnsupported, "the path leads to another kind of file, or to an encrypted database"},
	{"database disk image is malformed", store.ErrDatabaseUnsupported, "the file is damaged: run PRAGMA integrity_check, and restore a backup"},
	{"malformed database schema", store.ErrDatabaseUnsupported, "this SQLite is older than what made the file's tables: 3.37 is needed"},
	{"locking protocol", ErrBusy, "many processes open the database at once: it is repeated"},
	{"no such table: ", store.ErrSchemaMissing, "run: onward migrate up; or look at the table prefix"},
	{"no such column: ", store.ErrSchemaOld, "run: onward migrate up"},
	{"has no column named ", store.ErrSchemaOld, "run: onward migrate up"},
}

// failed says what was being done, and what SQLite's refusal means.
func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	switch e := err.(type) { //nolint:errorlint // this error itself: what wraps one says its operation
	case *outbox.Error:
		if e.Op != "" {
			return err
		}
		named := *e
		named.Op = op
		return &named
	default:
		if outbox.CodeOf(err) != "" {
			return err
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", op, err)
	}
	text := err.Error()
	for _, m := range meanings {
		if strings.Contains(text, m.text) {
			return &outbox.Error{Code: m.is.Code, Op: op, Detail: m.is.Detail, Hint: m.hint, Err: err}
		}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// isBusy: another connection holds the lock; nothing was done.
func isBusy(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "database is locked") || strings.Contains(err.Error(), "locking protocol"))
}

// isFull: there was no room on the disk, or in the file; nothing was done.
func isFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "database or disk is full")
}
