package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// Examiner reads the server's settings: what a commit is worth, and what will hurt. It is a doctor.Examiner and a
// doctor.Sampler; the outbox's tables need not exist. Safe for concurrent use.
//
// docs/doctor.md has what it looks at. What it needs beyond connecting is pg_read_all_stats, to see the transactions of other
// users; without it, it says that it does not.
type Examiner struct {
	pool    *pgxpool.Pool
	names   names
	publish PublishWhen
	old     time.Duration // a transaction that is older is said
}

var (
	_ doctor.Examiner = (*Examiner)(nil)
	_ doctor.Sampler  = (*Examiner)(nil)
	_ doctor.Examiner = (*Store)(nil)
	_ doctor.Sampler  = (*Store)(nil)
)

// oldTransaction is when a transaction has been open for longer than services mean it to be.
const oldTransaction = 5 * time.Minute

// NewExaminer returns an Examiner of the server that the pool leads to; of c, the names and PublishWhen count. It asks
// nothing yet; the pool stays the caller's.
func NewExaminer(pool *pgxpool.Pool, c Config) (*Examiner, error) {
	n, err := newNames(c.Schema, c.TablePrefix)
	if err != nil {
		return nil, err
	}
	return &Examiner{pool: pool, names: n, publish: c.PublishWhen, old: oldTransaction}, nil
}

// Examine is that of an Examiner.
func (s *Store) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	return s.examiner().Examine(ctx, q)
}

// Newest is that of an Examiner.
func (s *Store) Newest(ctx context.Context, most int) ([]*outbox.Record, error) {
	return s.examiner().Newest(ctx, most)
}

func (s *Store) examiner() *Examiner {
	return &Examiner{pool: s.pool, names: s.names, publish: s.publish, old: oldTransaction}
}

// Newest returns the newest messages without payloads and headers; none where there are no tables.
func (e *Examiner) Newest(ctx context.Context, most int) (all []*outbox.Record, err error) {
	err = pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, readSettings); err != nil {
			return err
		}
		all, err = collect(ctx, tx, e.text("newest"), []any{most}, func(row pgx.CollectableRow) (*outbox.Record, error) {
			r := &outbox.Record{}
			return r, row.Scan((*[16]byte)(&r.ID), &r.Topic, &r.Key, &r.Type, &r.ContentType, &r.Scope, &r.CorrelationID, &r.CausationID,
				&r.AggregateType, &r.AggregateID, &r.EventID, &r.Partition, &r.Seq)
		})
		return err
	})
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the newest messages: %w", err)
	}
	return all, nil
}

func (e *Examiner) text(name string) string { return e.names.sql(queryFile("doctor", name, nil)) }

// Examine asks the server; what it does not tell this user is an Unknown finding.
func (e *Examiner) Examine(ctx context.Context, _ doctor.Question) (doctor.Diagnosis, error) {
	x := &examination{Examiner: e, settings: map[string]string{}}
	for _, step := range []func(context.Context) error{
		x.server, x.readSettings, x.durability, x.tables, x.transactions, x.prepared, x.slots, x.replicas,
	} {
		if err := step(ctx); err != nil {
			return doctor.Diagnosis{}, fmt.Errorf("examine the database: %w", err)
		}
	}
	x.d.Worth = x.worth()
	return x.d, nil
}

// examination is one run of Examine.
type examination struct {
	*Examiner
	d        doctor.Diagnosis
	user     string
	sees     bool // the transactions of others
	standby  bool
	settings map[string]string
	standbys int // that are connected
	sync     int // for which commits wait
}

// found adds a finding.
func (x *examination) found(check string, s doctor.Severity, read, means, fix string) {
	x.d.Add(doctor.Finding{Check: check, Severity: s, Read: read, Means: means, Fix: fix})
}

// expect is found where something holds, and OK where it does not.
func (x *examination) expect(ok bool, check string, s doctor.Severity, read, means, fix string) {
	if ok {
		s, means, fix = doctor.OK, "", ""
	}
	x.found(check, s, read, means, fix)
}

func (x *examination) server(ctx context.Context) error {
	var number int
	var version, encoding, database string
	var said time.Time
	var before, after time.Time
	// the first answer may come with a new connection; the second is as quick as the way there
	for range 2 {
		before = time.Now()
		err := x.pool.QueryRow(ctx, x.text("server")).Scan(&number, &version, &encoding, &x.standby, &said, &x.user, &database, &x.sees)
		after = time.Now()
		if err != nil {
			return err
		}
	}
	x.d.Server = "PostgreSQL " + strings.Fields(version + " ")[0]
	x.expect(number >= oldestServer, "postgres-version", doctor.Unsafe, x.d.Server, "a relay refuses a server older than PostgreSQL 14", "upgrade the server")
	x.expect(!x.standby, "postgres-primary", doctor.Unsafe, fmt.Sprintf("pg_is_in_recovery() = %v", x.standby),
		"a standby does not show which transactions are open: a relay refuses it", "connect to the primary: target_session_attrs=read-write in database.url")
	x.expect(encoding == "UTF8", "postgres-encoding", doctor.Unsafe, "server_encoding = "+encoding,
		"only UTF8 holds every text as it was written: a relay refuses this database", "CREATE DATABASE "+pgx.Identifier{database + "_utf8"}.Sanitize()+" ENCODING 'UTF8' TEMPLATE template0;")
	x.d.Add(doctor.Clock("the database", said, before, after, 0))
	return nil
}

func (x *examination) readSettings(ctx context.Context) error {
	rows, err := x.pool.Query(ctx, x.text("settings"))
	if err != nil {
		return err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		x.settings[name] = value
		return nil
	})
	return err
}

func alterSystem(setting string) string {
	return "ALTER SYSTEM SET " + setting + "; SELECT pg_reload_conf();"
}

// durability is what a crash of the server takes back.
func (x *examination) durability(ctx context.Context) error {
	on := func(name, check, means string) {
		value := x.settings[name]
		x.expect(value == "on", check, doctor.Unsafe, name+" = "+value, means, alterSystem(name+" = on"))
	}
	on("fsync", "postgres-fsync", "nothing is forced to the disk: a crash of the machine loses commits, and can ruin the whole database")
	on("full_page_writes", "postgres-full-page-writes", "a page that was half written in a crash is not repaired: rows, also of the outbox, can be ruined")
	x.expect(x.settings["autovacuum"] == "on", "postgres-autovacuum", doctor.Warning, "autovacuum = "+x.settings["autovacuum"],
		"rows that retention and relays remove are never cleaned up: tables grow, and reading gets slower", alterSystem("autovacuum = on"))

	value := x.settings["synchronous_commit"]
	x.lazy(value != "off", "synchronous_commit = "+value, alterSystem("synchronous_commit = on"))
	rows, err := x.pool.Query(ctx, x.text("overrides"))
	if err != nil {
		return err
	}
	var read, fix string
	_, err = pgx.ForEachRow(rows, []any{&read, &fix}, func() error {
		x.lazy(false, read, fix)
		return nil
	})
	return err
}

// lazy is about writers whose commits return before they are on the disk.
func (x *examination) lazy(waits bool, read, fix string) {
	severity, means := doctor.Unsafe, "a commit returns before it is on the disk: a crash forgets the newest ones, and with publish_when committed their messages may be published although no row is left"
	if x.publish == Flushed || x.publish == Replicated {
		severity = doctor.Warning
		means = "a commit returns before it is on the disk: a crash forgets the newest ones, with their messages; nothing is published of them, as database.publish_when is " + string(x.publish)
	} else {
		fix += " Or set database.publish_when to flushed"
	}
	x.expect(waits, "postgres-synchronous-commit", severity, read, means, fix)
}

// tables are the outbox's own.
func (x *examination) tables(ctx context.Context) error {
	var messages string
	var incarnation *string
	var cache *int64
	err := x.pool.QueryRow(ctx, x.text("tables")).Scan(&messages, &incarnation, &cache)
	if errors.Is(err, pgx.ErrNoRows) {
		x.found("postgres-tables", doctor.Unknown, "there is no table "+x.names.sql("outbox_messages"), "the outbox's tables and its sequence were not looked at", "onward migrate up")
		return nil
	}
	if err != nil {
		return err
	}
	table, sequence, token := x.names.sql("outbox_messages"), x.names.sql("outbox_messages_seq_seq"), x.names.sql("outbox_incarnation")
	x.expect(messages == "p", "postgres-logged", doctor.Unsafe, persistence(table, messages), "a crash of the server empties it", "ALTER TABLE "+table+" SET LOGGED;")
	if cache != nil {
		x.expect(*cache <= 1, "postgres-sequence-cache", doctor.Unsafe, fmt.Sprintf("%s has CACHE %d", sequence, *cache),
			"messages of a key would go out of order: a relay refuses it", "ALTER SEQUENCE "+sequence+" CACHE 1;")
	}
	if incarnation != nil {
		x.expect(*incarnation == "u", "postgres-incarnation", doctor.Unsafe, persistence(token, *incarnation),
			"relays learn from its being emptied that the server crashed or was promoted, and forget what they remember: like this they do not", "ALTER TABLE "+token+" SET UNLOGGED;")
	}
	return nil
}

func persistence(table, p string) string {
	if p == "u" {
		return table + " is UNLOGGED"
	}
	return table + " is LOGGED"
}
