// Package postgres keeps an outbox in PostgreSQL 14 or later: its migrations, the writers that a service uses within its own
// transactions, the store that a relay reads and settles, and what people ask of it and do to it.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Config says which outbox is meant. The zero value is the outbox_ tables in the schema public.
type Config struct {
	Schema      string       // default public
	TablePrefix string       // default outbox_
	Logger      *slog.Logger // of a Store: take-overs, server deaths; nil: silent
	// ListenURL is how a Store connects to hear that messages were committed; empty: by a connection of the pool. Where the pool leads
	// through a pooler (pgbouncer) that does not pass notifications on, name a direct way to the same database.
	ListenURL string
	// PublishWhen is when a Store hands over what it has read; empty: Committed. Replicated needs synchronous standbys, and the
	// right to see them (GRANT pg_read_all_stats); where they are away, messages wait.
	PublishWhen PublishWhen
}

// Store is the relay's view of an outbox on PostgreSQL 14 or later: a store.Store. Safe for concurrent use.
//
// It keeps no state in the server's sessions: every statement travels in one batch with the BEGIN, the settings and the
// COMMIT that it needs, so the pool may lead through a pooler, and what the role or database sets as defaults decides
// nothing. Whether statements are prepared is the pool's setting (pgx.ConnConfig.DefaultQueryExecMode).
type Store struct {
	pool    *pgxpool.Pool
	names   names
	log     *slog.Logger
	publish PublishWhen

	listener *listener
	begins   atomic.Bool // the default isolation is another one than READ COMMITTED: each transaction must begin with its own

	mu       sync.Mutex
	members  map[outbox.ID]*member // the registrations of this Store's relays
	sessions map[*Session]bool
	vouched  string // the token under which the rows were found to be of this server's numbering
	lineage  string // last read
	reborn   bool   // a token was made here, and nobody has said so

	partitions int
	retaining  sync.Mutex // guards sweep
	sweep      sweep
}

var _ store.Store = (*Store)(nil)

// oldestServer is PostgreSQL 14 as server_version_num.
const oldestServer = 140000

// Open returns the outbox of the configuration after it has checked that it can be used. It changes nothing in the
// database; the pool stays the caller's. It needs a connection for a read, one for a settle, two for leases and
// parked messages, and one for retention: a pool of 5 or more. While relays run, one more connection, which does not count against
// the pool's limit, hears that messages were committed.
//
// Errors: outbox.ErrIdentifierInvalid, outbox.ErrConfigInvalid, those of Info, and store.ErrDatabaseUnsupported where
// Config.PublishWhen cannot come true.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	n, err := newNames(c.Schema, c.TablePrefix)
	if err != nil {
		return nil, err
	}
	s := &Store{
		pool: pool, names: n, log: c.Logger, publish: cmp.Or(c.PublishWhen, Committed),
		members: make(map[outbox.ID]*member), sessions: make(map[*Session]bool),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.listener, err = newListener(s, c.ListenURL); err != nil {
		return nil, err
	}
	if err := s.checkPooler(ctx); err != nil {
		return nil, err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, err
	}
	s.partitions = info.Partitions
	if err := s.checkPublish(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

const opOpen = "open outbox"

// Info says what the database is. Errors: store.ErrDatabaseUnsupported (an old server, an encoding other than UTF8, a
// standby, a sequence with a cache), store.ErrSchemaMissing, store.ErrSchemaOld, store.ErrSchemaNew; anything else is the database's own.
func (s *Store) Info(ctx context.Context) (store.Info, error) {
	if err := checkServer(ctx, s.pool, opOpen); err != nil {
		return store.Info{}, err
	}
	var version, schema, partitions string
	var cache int64
	var info store.Info
	err := s.pool.QueryRow(ctx, s.text("info")).Scan(&version, &schema, &partitions, &info.Lineage, &cache)
	var missing *pgconn.PgError
	switch {
	case errors.As(err, &missing) && (missing.Code == "42P01" || missing.Code == "3F000"): // undefined table, invalid schema
		return store.Info{}, refuse(store.ErrSchemaMissing, "there is no table "+s.names.sql("outbox_meta"))
	case err != nil:
		return store.Info{}, fmt.Errorf("%s: %w", opOpen, err)
	}
	info.Database = shortVersion(version)
	if info.Schema, err = strconv.Atoi(schema); err != nil {
		return store.Info{}, refuse(store.ErrSchemaMissing, "outbox_meta has no schema version")
	}
	if info.Partitions, err = strconv.Atoi(partitions); err != nil {
		return store.Info{}, refuse(store.ErrSchemaMissing, "outbox_meta has no number of partitions")
	}
	versions := fmt.Sprintf("the tables have version %d, this program works with %d", info.Schema, schemaVersion)
	switch {
	case info.Schema < schemaVersion:
		return store.Info{}, refuse(store.ErrSchemaOld, versions)
	case info.Schema > schemaVersion:
		return store.Info{}, &outbox.Error{Code: store.ErrSchemaNew.Code, Op: opOpen, Detail: versions, Hint: "run a newer release of this program"}
	case cache > 1:
		return store.Info{}, s.refuseCache(cache)
	}
	return info, nil
}

// refuse says that the tables are not there, or are older than this program.
func refuse(sentinel *outbox.Error, detail string) error {
	return &outbox.Error{Code: sentinel.Code, Op: opOpen, Detail: detail, Hint: "run: onward migrate up"}
}

// refuseCache: each session of a writer would take numbers ahead, and give them to messages that it writes after others of
// their key were committed. None would be lost, but the key would be out of order.
func (s *Store) refuseCache(cache int64) error {
	sequence := s.names.sql("outbox_messages_seq_seq")
	return &outbox.Error{
		Code: store.ErrDatabaseUnsupported.Code, Op: opOpen,
		Detail: fmt.Sprintf("the sequence %s has CACHE %d: messages of a key would go out of order", sequence, cache),
		Hint:   "run: ALTER SEQUENCE " + sequence + " CACHE 1; and let writers connect again: a session uses up the numbers that it has",
	}
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkServer asks only what any server can answer, tables or not.
func checkServer(ctx context.Context, q querier, op string) error {
	var number int
	var encoding, version string
	var standby bool
	if err := q.QueryRow(ctx, sessionFile("server")).Scan(&number, &version, &encoding, &standby); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	unsupported := func(detail, hint string) error {
		return &outbox.Error{Code: store.ErrDatabaseUnsupported.Code, Op: op, Detail: detail, Hint: hint}
	}
	switch {
	case number < oldestServer:
		return unsupported("PostgreSQL "+version+" is older than 14", "upgrade the server")
	case encoding != "UTF8":
		return unsupported("the database's encoding is "+encoding, "create the database with ENCODING 'UTF8'")
	case standby:
		return unsupported("this server is a standby", "connect to the primary: snapshots of a standby do not show open transactions")
	}
	return nil
}

// Close ends the sessions that are still open as a crash would: others take over when their lease ends. Close the
// sessions first. The pool stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	open := s.sessions
	s.sessions = make(map[*Session]bool)
	s.mu.Unlock()
	for session := range open {
		session.end()
	}
	s.listener.left()
	return nil
}

// text is a statement of this outbox that no page size belongs to.
func (s *Store) text(name string) string { return sessionStatement(s.names, name, 0) }

// settings begin every transaction of the relay, whatever the role, the database or a pooler left behind. A policy that
// hides rows fails the statement. Scans go along the indexes in their order, so that each LIMIT ends one: without
// statistics, as while the first large transaction is open, the planner would read and sort the whole log at each poll.
const (
	begin    = `BEGIN ISOLATION LEVEL READ COMMITTED`
	settings = `SELECT set_config('row_security', 'off', true), set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`
	idleTimeout = `SET LOCAL idle_in_transaction_session_timeout = '10s'`
	commit      = `COMMIT`
	askSettings = settings + `, current_setting('transaction_isolation')`
)

// trip sends one transaction as one batch, in one flush and one round trip. as, where not empty, names the session that
// holds locks while it runs. queue adds the statements, read takes their answers.
func (s *Store) trip(ctx context.Context, as string, queue func(*pgx.Batch), read func(pgx.BatchResults) error) (err error) {
	b := &pgx.Batch{}
	b.Queue(begin)
	b.Queue(settings)
	if as != "" {
		b.Queue(idleTimeout)
		b.Queue(`SET LOCAL application_name = '` + as + `'`)
	}
	before := b.Len()
	queue(b)
	b.Queue(commit)
	results := s.pool.SendBatch(ctx, b)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	for range before {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	if err := read(results); err != nil {
		return err
	}
	_, err = results.Exec()
	return err
}

// opening is a statement that begins with askSettings, and does something besides; the zero value: nothing.
type opening struct {
	sql  string
	args []any
	dest []any // of what it returns besides
}

// query asks for it.
func (o *opening) query(r pgx.BatchResults, isolation *string) error {
	return r.QueryRow().Scan(append([]any{nil, nil, nil, nil, isolation}, o.dest...)...)
}

// ask sends statements that only read, in the transaction that the server makes of a batch: an idle relay asks several times a second,
// and BEGIN and COMMIT would be half of its statements. Where another isolation than READ COMMITTED is the default it is a trip.
func (s *Store) ask(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.askAfter(ctx, opening{}, queue, read)
}

// askAfter is ask after another statement, which may come twice.
func (s *Store) askAfter(ctx context.Context, first opening, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	if !s.begins.Load() {
		if asked, err := s.askOnce(ctx, first, queue, read); asked || err != nil {
			return err
		}
		s.begins.Store(true)
	}
	if first.sql == "" {
		return s.trip(ctx, "", queue, read)
	}
	return s.trip(ctx, "", func(b *pgx.Batch) {
		b.Queue(first.sql, first.args...)
		queue(b)
	}, func(r pgx.BatchResults) error {
		if err := first.query(r, nil); err != nil {
			return err
		}
		return read(r)
	})
}

// askOnce gives up, without having read, where the transaction's isolation is another one.
func (s *Store) askOnce(ctx context.Context, first opening, queue func(*pgx.Batch), read func(pgx.BatchResults) error) (asked bool, err error) {
	b := &pgx.Batch{}
	if first.sql == "" {
		first.sql = askSettings
	}
	b.Queue(first.sql, first.args...)
	queue(b)
	results := s.pool.SendBatch(ctx, b)
	defer func() {
		if e := results.Close(); err == nil && asked {
			err = e
		}
	}()
	var isolation string
	if err := first.query(results, &isolation); err != nil {
		return false, err
	}
	if isolation != "read committed" {
		return false, nil
	}
	return true, read(results)
}
