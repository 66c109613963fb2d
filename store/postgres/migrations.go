package postgres

import (
	"embed"
	"fmt"
	"iter"
	"math/bits"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed grants.sql
var grantsFile string

// Migration is one step of the schema. Steps are numbered from 1 without gaps and never change once released.
type Migration struct {
	Version int
	Name    string // for example "outbox"
	// Locks says which locks the step takes and how long it holds them.
	Locks string
	// Transaction: the step is one transaction. Otherwise its statements run one by one, as CREATE INDEX CONCURRENTLY
	// wants it, and the step can be repeated after a failure.
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

const noTransactionLine = "\n-- transaction: none\n"

// migrations returns all steps in order, for an outbox of n partitions. It panics on a file that is not as it must be:
// the files are part of the program.
func (n names) migrations(partitions int) []Migration {
	var all []Migration
	for name, text := range migrationTexts() {
		parts, locks := migrationName.FindStringSubmatch(name), locksLine.FindStringSubmatch(text)
		if parts == nil || parts[1] != fmt.Sprintf("%04d", len(all)+1) || locks == nil {
			panic("migration " + name + ": want NNNN_name.sql, numbered without gaps, that begins with -- locks:")
		}
		all = append(all, Migration{
			Version: len(all) + 1, Name: parts[2], Locks: n.bare(locks[1]),
			Transaction: !strings.Contains(text, noTransactionLine), SQL: n.expand(text, partitions),
		})
	}
	return all
}

// migrationTexts yields the steps' files in order: name and text.
func migrationTexts() iter.Seq2[string, string] {
	return func(yield func(name, text string) bool) {
		entries, err := migrationFiles.ReadDir("migrations")
		if err != nil {
			panic(err)
		}
		for _, e := range entries {
			text, err := migrationFiles.ReadFile(path.Join("migrations", e.Name()))
			if err != nil {
				panic(err)
			}
			if !yield(e.Name(), string(text)) {
				return
			}
		}
	}
}

// schemaVersion is the version that this program works with.
var schemaVersion = func() int {
	entries, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		panic(err)
	}
	return len(entries)
}()

// expand fills a file's places: :partitions, :schema and the names.
func (n names) expand(text string, partitions int) string {
	return n.sql(strings.NewReplacer(":partitions", strconv.Itoa(partitions), ":schema", `"`+n.schema+`"`).Replace(text))
}

// grants are the rights of the shipped roles.
func (n names) grants() string { return n.expand(grantsFile, 0) }

// bare puts this outbox's prefix into a text for people.
func (n names) bare(text string) string { return strings.ReplaceAll(text, "outbox_", n.prefix) }

// Partitions of an outbox.
const (
	DefaultPartitions = 64 // serves most: it bounds how many relays can share a sink
	MaxPartitions     = 16384
)

func checkPartitions(n int) error {
	if n < 1 || n > MaxPartitions || bits.OnesCount(uint(n)) != 1 {
		return &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "postgres configuration",
			Detail: fmt.Sprintf("%d partitions", n), Hint: fmt.Sprintf("choose a power of two up to %d", MaxPartitions),
		}
	}
	return nil
}
