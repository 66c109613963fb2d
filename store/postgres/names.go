package postgres

import (
	"regexp"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// names are where an outbox lives: its schema and the prefix of its tables, functions and indexes.
type names struct {
	schema, prefix string
}

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)

// newNames fills in the defaults, public and outbox_, and refuses what is not an identifier.
func newNames(schema, prefix string) (names, error) {
	n := names{schema: schema, prefix: prefix}
	if n.schema == "" {
		n.schema = "public"
	}
	if n.prefix == "" {
		n.prefix = "outbox_"
	}
	for what, s := range map[string]string{"schema": n.schema, "table prefix": n.prefix} {
		if !identifier.MatchString(s) {
			return names{}, &outbox.Error{
				Code: outbox.ErrIdentifierInvalid.Code, Op: "postgres configuration",
				Detail: what + " \"" + s + "\" is not ^[a-z_][a-z0-9_]{0,30}$",
				Hint:   "use lower-case letters, digits and underscores, at most 31",
			}
		}
	}
	return n, nil
}

// sql turns the names of our SQL files into this outbox's: outbox_x is the qualified object, :outbox_x the bare name.
func (n names) sql(text string) string {
	const ours = "outbox_"
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, ours)
		switch {
		case !found:
			b.WriteString(text)
			return b.String()
		case before != "" && isWord(before[len(before)-1]), before == "" && b.Len() > 0: // a part of another word
			b.WriteString(before + ours)
		case strings.HasSuffix(before, ":"):
			b.WriteString(before[:len(before)-1] + n.prefix)
		default:
			b.WriteString(before + `"` + n.schema + `".` + n.prefix)
		}
		text = after
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
