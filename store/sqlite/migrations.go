package sqlite

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema. Steps are numbered from 1 without gaps and never change once released.
type Migration struct {
	Version int
	Name    string // for example "outbox"
	// Locks says which locks the step takes and how long it holds them.
	Locks string
	// Transaction: the step is one transaction, as every step on SQLite is.
	Transaction bool
	// SQL is what it runs, in this outbox's names.
	SQL string
}

// String returns the step's file name without suffix, for example "0001_outbox".
func (m Migration) String() string { return fmt.Sprintf("%04d_%s", m.Version, m.Name) }

var (
	migrationName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)
	locksLine     = regexp.MustCompile(`(?m)\A-- locks: (.+)$`)
)

// migrations returns all steps in order. It panics on a file that is not as it must be: the files are part of the program.
func (n names) migrations() []Migration {
	entries, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		panic(err)
	}
	var all []Migration
	for _, e := range entries {
		text, err := migrationFiles.ReadFile(path.Join("migrations", e.Name()))
		if err != nil {
			panic(err)
		}
		parts, locks := migrationName.FindStringSubmatch(e.Name()), locksLine.FindSubmatch(text)
		if parts == nil || parts[1] != fmt.Sprintf("%04d", len(all)+1) || locks == nil {
			panic("migration " + e.Name() + ": want NNNN_name.sql, numbered without gaps, that begins with -- locks:")
		}
		all = append(all, Migration{
			Version: len(all) + 1, Name: parts[2], Locks: strings.ReplaceAll(string(locks[1]), "outbox_", n.prefix),
			Transaction: true, SQL: n.sql(string(text)),
		})
	}
	return all
}

// schemaVersion is the version that this program works with.
var schemaVersion = len(names{"outbox_"}.migrations())
