package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite", without cgo

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// FileConfig says how OpenDB opens a file. The zero value suits a file that holds the business's state.
type FileConfig struct {
	// Synchronous is when a commit reaches the disk: "full" (default; each commit outlives a power cut) or "normal" (the
	// last ones may be gone after a power cut or a crash of the system, together and without gaps; a crash of the process
	// loses nothing either way).
	Synchronous string
	BusyTimeout time.Duration // default 5 s: how long a statement waits for the transactions of others
	Create      bool          // make the file where it is missing; otherwise that is ErrUnavailable
}

// OpenDB opens a file with the driver that comes with this package, for a service, a relay or both: write-ahead log,
// foreign keys on, transactions that begin with the write lock (a transaction that reads first and writes then would
// otherwise be refused whenever another one has written in between). The file is opened once, so that what is wrong with it
// is said here.
//
// path is a path, or a URL: sqlite:orders.db, sqlite:/var/lib/shop/orders.db, with ?synchronous=normal or
// ?busy_timeout=10s, which come before c.
//
// Errors: outbox.ErrConfigInvalid, ErrUnavailable (the folder or the file is missing, or may not be read),
// store.ErrDatabaseUnsupported (no database), ErrBusy.
func OpenDB(ctx context.Context, path string, c FileConfig) (*sql.DB, error) {
	path, err := parseURL(path, &c)
	if err != nil {
		return nil, err
	}
	if err := c.complete(path); err != nil {
		return nil, err
	}
	op := "open " + path
	if err := checkPath(path, c.Create); err != nil {
		return nil, failed(op, err)
	}
	db, err := sql.Open("sqlite", c.dsn(path))
	if err != nil {
		return nil, failed(op, err)
	}
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables); err != nil {
		_ = db.Close()
		return nil, failed(op, err)
	}
	return db, nil
}

func invalid(detail, hint string) error {
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "open sqlite file", Detail: detail, Hint: hint}
}

// parseURL takes the path out of a URL, and its settings into c.
func parseURL(path string, c *FileConfig) (string, error) {
	rest, isURL := strings.CutPrefix(path, "sqlite:")
	if !isURL {
		return path, nil
	}
	rest, query, _ := strings.Cut(rest, "?")
	rest = strings.TrimPrefix(rest, "//") // sqlite:///var/x.db has no host; sqlite://x.db is taken for the file x.db
	plain, err := url.PathUnescape(rest)
	if err != nil {
		return "", invalid(err.Error(), "write a percent sign as %25")
	}
	settings, err := url.ParseQuery(query)
	if err != nil {
		return "", invalid(err.Error(), "write sqlite:FILE?synchronous=normal")
	}
	for name, values := range settings {
		switch {
		case len(values) == 1 && name == "synchronous":
			c.Synchronous = values[0]
		case len(values) == 1 && name == "busy_timeout":
			if c.BusyTimeout, err = time.ParseDuration(values[0]); err != nil {
				return "", invalid("busy_timeout is "+values[0], "write a duration, for example 10s")
			}
		default:
			return "", invalid("the URL has a setting "+strconv.Quote(name), "the settings are synchronous and busy_timeout, each once")
		}
	}
	return plain, nil
}

func (c *FileConfig) complete(path string) error {
	c.Synchronous = strings.ToLower(c.Synchronous)
	if c.Synchronous == "" {
		c.Synchronous = "full"
	}
	if c.BusyTimeout == 0 {
		c.BusyTimeout = DefaultBusyTimeout
	}
	switch {
	case path == "" || path == ":memory:":
		return invalid("there is no file", "an outbox is to outlive its process: write sqlite:FILE")
	case strings.ContainsRune(path, 0):
		return invalid("the path contains NUL", "")
	case !slices.Contains([]string{"full", "normal"}, c.Synchronous):
		return invalid("synchronous is "+strconv.Quote(c.Synchronous), "choose full or normal: anything less may damage the file")
	case c.BusyTimeout < time.Millisecond:
		return invalid("busy timeout "+c.BusyTimeout.String(), "choose 1ms or more; 0 is 5s")
	}
	return nil
}

// dsn is the data source name of modernc.org/sqlite.
func (c *FileConfig) dsn(path string) string {
	mode := "rw"
	if c.Create {
		mode = "rwc"
	}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", c.BusyTimeout.Milliseconds()), "journal_mode(WAL)", "foreign_keys(1)",
		"synchronous(" + c.Synchronous + ")", "temp_store(memory)", // what undoes a statement need not go to the disk
	}}
	escaped := (&url.URL{Path: path}).EscapedPath()
	if strings.HasPrefix(path, "/") {
		escaped = "//" + escaped // an empty host: else that of //host/file
	}
	return "file:" + escaped + "?" + q.Encode()
}

// checkPath finds out what SQLite calls "unable to open database file" without a word why.
func checkPath(path string, create bool) error {
	refuse := func(detail, hint string, err error) error {
		return &outbox.Error{Code: ErrUnavailable.Code, Detail: detail, Hint: hint, Err: err}
	}
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err != nil {
		return refuse("the folder "+folder+" cannot be used", "create it: only the file in it is made", err)
	} else if !info.IsDir() {
		return refuse(folder+" is not a folder", "", nil)
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return refuse("it is a folder", "name a file in it", nil)
	case err == nil && !info.Mode().IsRegular():
		return &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Detail: "it is no regular file", Hint: "name a file"}
	case err == nil || os.IsNotExist(err) && create:
		return nil
	case os.IsNotExist(err):
		return refuse("there is no such file", "create it with: onward migrate up", fs.ErrNotExist)
	}
	return refuse("the file cannot be used", "", err)
}
