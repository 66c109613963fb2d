package sqlite

import (
	"embed"
	"maps"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/onwardhq/onward/outbox"
)

// names are where an outbox lives in its file: the prefix of its tables, indexes and triggers.
type names struct{ prefix string }

var (
	identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)
	nameInSQL  = regexp.MustCompile(`\boutbox_([a-z0-9_]*)`)
	nowInSQL   = regexp.MustCompile(`:now\b`)
)

// clock is SQLite's time in microseconds since 1970. julianday has milliseconds; newer functions are not used, because
// producers of any version evaluate the tables' defaults.
const clock = `(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)`

// newNames fills in the default, outbox_, and refuses what is not an identifier.
func newNames(prefix string) (names, error) {
	if prefix == "" {
		prefix = "outbox_"
	}
	if !identifier.MatchString(prefix) || strings.HasPrefix(prefix, "sqlite_") {
		return names{}, &outbox.Error{
			Code: outbox.ErrIdentifierInvalid.Code, Op: "sqlite configuration",
			Detail: "table prefix \"" + prefix + "\" is not ^[a-z_][a-z0-9_]{0,30}$, or is SQLite's own",
			Hint:   "use lower-case letters, digits and underscores, at most 31; not sqlite_",
		}
	}
	return names{prefix}, nil
}

// sql turns the names of our SQL files into this outbox's, and :now into SQLite's clock.
func (n names) sql(text string) string {
	return nowInSQL.ReplaceAllLiteralString(nameInSQL.ReplaceAllString(text, n.prefix+"$1"), clock)
}

//go:embed queries/*.sql
var queryFiles embed.FS

var (
	statementHead = regexp.MustCompile(`(?m)^-- name: (\w+)$`)
	includeLine   = regexp.MustCompile(`(?m)^--:(\w+)$`)
)

// readFile is what was read of a file for an outbox of these names: a service may open the same one again and again.
type readFile struct {
	names
	file string
}

var readBefore sync.Map // of readFile: map[string]string

// statements are those of a file of queries. The map is the caller's own.
func (n names) statements(file string) map[string]string {
	key := readFile{n, file}
	all, known := readBefore.Load(key)
	if !known {
		all, _ = readBefore.LoadOrStore(key, n.read(file))
	}
	return maps.Clone(all.(map[string]string)) //nolint:forcetypeassert // nothing else is there
}

// read reads a file of queries: by name, in this outbox's names. A line "--:name" stands for the statement of that
// name; columns.sql can be named everywhere.
func (n names) read(file string) map[string]string {
	all := map[string]string{}
	for _, f := range []string{"columns", file} {
		text, err := queryFiles.ReadFile(path.Join("queries", f+".sql"))
		if err != nil {
			panic(err) // a name in this package that its own files do not have
		}
		heads := statementHead.FindAllSubmatchIndex(text, -1)
		for i, h := range heads {
			end := len(text)
			if i+1 < len(heads) {
				end = heads[i+1][0]
			}
			all[string(text[h[2]:h[3]])] = strings.TrimSpace(string(text[h[1]:end]))
		}
	}
	for name, text := range all {
		all[name] = n.sql(withoutComments(includeLine.ReplaceAllStringFunc(text, func(line string) string {
			included, ok := all[strings.TrimPrefix(line, "--:")]
			if !ok {
				panic("queries/" + file + ".sql: " + name + " includes " + line)
			}
			return included
		})))
	}
	return all
}

// withoutComments drops the lines that are for readers of the files.
func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "-- ") {
			b.WriteString(line)
		}
	}
	return strings.TrimSuffix(strings.TrimSpace(b.String()), ";")
}
