package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// Examiner reads the file's settings, and those of this process's connections: what a commit is worth. It is a
// doctor.Examiner and a doctor.Sampler; the outbox's tables need not exist. Safe for concurrent use. docs/doctor.md has what
// it looks at.
type Examiner struct {
	db    *sql.DB
	names names
}

var (
	_ doctor.Examiner = (*Examiner)(nil)
	_ doctor.Sampler  = (*Examiner)(nil)
	_ doctor.Examiner = (*Store)(nil)
	_ doctor.Sampler  = (*Store)(nil)
)

// NewExaminer returns an Examiner of the file; of c, the names count. It asks nothing yet; the pool stays the caller's.
func NewExaminer(db *sql.DB, c Config) (*Examiner, error) {
	n, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Examiner{db: db, names: n}, nil
}

// Examine is that of an Examiner.
func (s *Store) Examine(ctx context.Context, q doctor.Question) (doctor.Diagnosis, error) {
	return (&Examiner{db: s.db, names: s.names}).Examine(ctx, q)
}

// Newest is that of an Examiner.
func (s *Store) Newest(ctx context.Context, most int) ([]*outbox.Record, error) {
	return (&Examiner{db: s.db, names: s.names}).Newest(ctx, most)
}

// Newest returns the newest messages without payloads and headers; none where there are no tables.
func (e *Examiner) Newest(ctx context.Context, most int) (all []*outbox.Record, err error) {
	const op = "read the newest messages"
	rows, err := e.db.QueryContext(ctx, e.names.statements("doctor")["newest"], most)
	if err != nil && strings.Contains(err.Error(), "no such table") {
		return nil, nil
	}
	if err != nil {
		return nil, failed(op, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		r, id := &outbox.Record{}, ""
		if err := rows.Scan(&id, &r.Topic, &r.Key, &r.Type, &r.ContentType, &r.Scope, &r.CorrelationID, &r.CausationID,
			&r.AggregateType, &r.AggregateID, &r.EventID, &r.Seq); err != nil {
			return nil, failed(op, err)
		}
		if r.ID, err = outbox.ParseID(id); err != nil {
			return nil, failed(op, err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, failed(op, err)
	}
	return all, nil
}

// synchronous are the words for the numbers of PRAGMA synchronous.
var synchronous = map[string]string{"0": "off", "1": "normal", "2": "full", "3": "extra"}

// Examine asks for the settings.
func (e *Examiner) Examine(ctx context.Context, _ doctor.Question) (doctor.Diagnosis, error) {
	settings := map[string]string{}
	conn, err := e.db.Conn(ctx)
	if err != nil {
		return doctor.Diagnosis{}, failed("examine the file", err)
	}
	defer func() { _ = conn.Close() }()
	for name, query := range map[string]string{
		"version": `SELECT sqlite_version()`, "journal_mode": `PRAGMA journal_mode`, "synchronous": `PRAGMA synchronous`, "encoding": `PRAGMA encoding`,
	} {
		var value string
		if err := conn.QueryRowContext(ctx, query).Scan(&value); err != nil {
			return doctor.Diagnosis{}, failed("examine the file", err)
		}
		settings[name] = strings.ToLower(value)
	}
	if word := synchronous[settings["synchronous"]]; word != "" {
		settings["synchronous"] = word
	}
	d := diagnose(settings)
	var there int
	table := strings.Trim(e.names.sql("outbox_messages"), `"`)
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1`, table).Scan(&there); err != nil {
		return doctor.Diagnosis{}, failed("examine the file", err)
	}
	if there == 0 {
		d.Add(doctor.Finding{
			Check: "sqlite-tables", Severity: doctor.Unknown, Read: "there is no table " + strconv.Quote(table),
			Means: "the file holds no outbox yet", Fix: "onward migrate up",
		})
	}
	return d, nil
}

// diagnose says what the settings are worth.
func diagnose(settings map[string]string) (d doctor.Diagnosis) {
	d.Server = "SQLite " + settings["version"]
	d.Worth = "a commit survives a crash and a power loss of this machine, and not the loss of its disk"
	found := func(check string, s doctor.Severity, setting, means, fix string) {
		f := doctor.Finding{Check: check, Severity: s, Read: setting + " = " + settings[setting]}
		if s > doctor.OK {
			f.Means, f.Fix = means, fix
		}
		d.Add(f)
	}
	grade := func(ok bool, otherwise doctor.Severity) doctor.Severity {
		if ok {
			return doctor.OK
		}
		return otherwise
	}
	found("sqlite-encoding", grade(settings["encoding"] == "utf-8", doctor.Unsafe), "encoding", "a relay refuses it: only UTF-8 holds every text as it was written", "make the file with PRAGMA encoding = 'UTF-8'")
	found("sqlite-journal-mode", grade(settings["journal_mode"] == "wal", doctor.Unsafe), "journal_mode", "a relay refuses it: readers and writers hold each other up, and with memory or off a crash ruins the file", "PRAGMA journal_mode = WAL;")
	const fix = "open it with ?synchronous=full, or PRAGMA synchronous = FULL;"
	switch settings["synchronous"] {
	case "full", "extra":
		found("sqlite-synchronous", doctor.OK, "synchronous", "", "")
	case "normal":
		found("sqlite-synchronous", doctor.Warning, "synchronous", "a power loss takes back the newest commits, and what relays have settled of them: their messages may have been published", fix)
		d.Worth = "a commit survives a crash of its process, and not always a power loss of the machine"
	default:
		found("sqlite-synchronous", doctor.Unsafe, "synchronous", "a power loss takes back commits, and can ruin the file", fix)
		d.Worth = "a commit survives a crash of its process alone"
	}
	d.Add(doctor.Finding{
		Check: "sqlite-writers", Severity: doctor.Note, Read: "synchronous belongs to each connection: this is the program's own",
		Means: "a service whose connections have less can lose its newest commits in a power loss: nobody else can read what they have", Fix: "look at what the services set: " + fmt.Sprintf("PRAGMA synchronous is %s here", settings["synchronous"]),
	})
	return d
}
