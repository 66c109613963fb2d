// Package sqlite keeps an outbox in an SQLite file, beside the business tables: its migrations, the writers that a service
// uses within its own transactions, the store that a relay reads and settles, and what people ask of it and do to it.
//
// Everything works on a *sql.DB of any driver for SQLite 3.37 or later; OpenDB makes one without cgo. One process must open
// a file with one driver alone: two copies of SQLite in one process release each other's locks.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Config says which outbox is meant. The zero value is the outbox_ tables.
type Config struct {
	TablePrefix string // default outbox_
	// BusyTimeout is how long a call waits for the transactions of others before it answers ErrBusy; default 5 s. A call's
	// context ends the wait as well.
	BusyTimeout time.Duration
	Logger      *slog.Logger // of a Store: take-overs; nil: silent
}

// DefaultBusyTimeout is how long connections wait for the transactions of others.
const DefaultBusyTimeout = 5 * time.Second

func (c *Config) complete() (names, error) {
	n, err := newNames(c.TablePrefix)
	if err != nil {
		return n, err
	}
	if c.BusyTimeout < 0 {
		return n, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "sqlite configuration",
			Detail: "busy timeout " + c.BusyTimeout.String(), Hint: "choose a duration above 0; 0 is 5s",
		}
	}
	if c.BusyTimeout == 0 {
		c.BusyTimeout = DefaultBusyTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return n, nil
}

// Store is the relay's view of an outbox in a file: a store.Store with one partition. Safe for concurrent use.
//
// It takes two connections out of the pool for itself, one that reads and one that writes, and ends them with Close.
type Store struct {
	db            *sql.DB
	names         names
	log           *slog.Logger
	reader        *line
	writer        *line
	mu            sync.Mutex
	sessions      map[*Session]bool
	sweep         sweep
	schemaVersion int
}

var _ store.Store = (*Store)(nil)

// Open returns the outbox of the configuration after it has checked that it can be used. It changes nothing in the file;
// the pool stays the caller's, and must allow at least three connections (SetMaxOpenConns; 0 is any number).
//
// Errors: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid, and those of Info.
func Open(ctx context.Context, db *sql.DB, c Config) (*Store, error) {
	n, err := c.complete()
	if err != nil {
		return nil, err
	}
	if most := db.Stats().MaxOpenConnections; most > 0 && most < 3 {
		return nil, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "open outbox", Detail: fmt.Sprintf("the pool allows %d connections", most),
			Hint: "allow 3 or more (SetMaxOpenConns), or give the relay a pool of its own: it keeps two connections",
		}
	}
	statements := n.statements("session")
	maps.Copy(statements, n.statements("retention"))
	s := &Store{
		db: db, names: n, log: c.Logger, sessions: map[*Session]bool{}, schemaVersion: schemaVersion,
		reader: newLine(db, statements, c.BusyTimeout), writer: newLine(db, statements, c.BusyTimeout),
	}
	if _, err := s.Info(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Info says what the database is. Errors: store.ErrDatabaseUnsupported (an old SQLite, an encoding other than UTF-8, a
// journal mode other than WAL, no database at all), store.ErrSchemaMissing, store.ErrSchemaOld, store.ErrSchemaNew,
// ErrUnavailable, ErrBusy; anything else is the driver's own.
func (s *Store) Info(ctx context.Context) (info store.Info, err error) {
	const op = "open outbox"
	err = s.reader.use(ctx, func(c *call) error {
		if err := checkFile(c.ctx, c.conn); err != nil {
			return err
		}
		info, err = c.info(s.schemaVersion)
		return err
	})
	return info, failed(op, err)
}

// info reads what outbox_meta says and refuses another version.
func (c *call) info(target int) (info store.Info, err error) {
	var version string
	var schema, partitions, lineage sql.NullString
	if _, err := c.row("info", nil, &version, &schema, &partitions, &lineage); err != nil {
		return info, err
	}
	refuse := func(sentinel *outbox.Error, detail string) (store.Info, error) {
		return store.Info{}, &outbox.Error{Code: sentinel.Code, Detail: detail, Hint: "run: onward migrate up"}
	}
	info = store.Info{Database: "SQLite " + version, Lineage: lineage.String}
	if info.Schema, err = strconv.Atoi(schema.String); err != nil {
		return refuse(store.ErrSchemaMissing, "outbox_meta has no schema version")
	}
	if info.Partitions, err = strconv.Atoi(partitions.String); err != nil || info.Partitions != 1 {
		return refuse(store.ErrSchemaMissing, "outbox_meta does not say that there is one partition")
	}
	versions := fmt.Sprintf("the tables have version %d, this program works with %d", info.Schema, target)
	switch {
	case info.Schema < target:
		return refuse(store.ErrSchemaOld, versions)
	case info.Schema > target:
		return store.Info{}, &outbox.Error{Code: store.ErrSchemaNew.Code, Detail: versions, Hint: "run a newer release of this program"}
	}
	return info, nil
}

// checkFile asks what any file can answer, tables or not.
func checkFile(ctx context.Context, conn *sql.Conn) error {
	var version, encoding, journal string
	for query, into := range map[string]*string{
		`SELECT sqlite_version()`: &version, `PRAGMA encoding`: &encoding, `PRAGMA journal_mode`: &journal,
	} {
		if err := conn.QueryRowContext(ctx, query).Scan(into); err != nil {
			return err
		}
	}
	unsupported := func(detail, hint string) error {
		return &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Detail: detail, Hint: hint}
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major < 3 || major == 3 && minor < 37 {
		return unsupported("SQLite "+version+" is older than 3.37", "use a newer driver")
	}
	switch {
	case encoding != "UTF-8":
		return unsupported("the database's encoding is "+encoding, "create the file with PRAGMA encoding = 'UTF-8', which is the default")
	case strings.EqualFold(journal, "memory"):
		return unsupported("this database is not in a file", "an outbox is to outlive its process: name a file")
	case !strings.EqualFold(journal, "wal"):
		return unsupported("the journal mode is "+journal+": readers and writers would hold each other up",
			"run: onward migrate up, or PRAGMA journal_mode = WAL; it needs a disk of this machine")
	}
	return nil
}

// Close ends the sessions that are still open as a crash would: others take over when their lease ends. Close the
// sessions first. The pool stays open, without the Store's two connections.
func (s *Store) Close() error {
	s.mu.Lock()
	open := s.sessions
	s.sessions = map[*Session]bool{}
	s.mu.Unlock()
	for session := range open {
		session.end()
	}
	s.reader.close()
	s.writer.close()
	return nil
}

// isFate: a COMMIT answered with an error, so nobody knows whether it was done.
func isFate(err error) bool {
	fate := fateError{}
	return errors.As(err, &fate)
}
