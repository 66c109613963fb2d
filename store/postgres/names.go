package postgres

import (
	"regexp"

	"github.com/onwardhq/onward/outbox"
)

// names are where an outbox lives: its schema and the prefix of its tables, functions and indexes.
type names struct {
	schema, prefix string
}

var (
	identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)
	nameInSQL  = regexp.MustCompile(`(:?)\boutbox_([a-z0-9_]*)`)
)

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
	return nameInSQL.ReplaceAllStringFunc(text, func(s string) string {
		if s[0] == ':' {
			return n.prefix + s[len(":outbox_"):]
		}
		return `"` + n.schema + `".` + n.prefix + s[len("outbox_"):]
	})
}
