package sqlite

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// ErrSchemaChanged: the outbox has its version and is not what the migrations made.
var ErrSchemaChanged = &outbox.Error{Code: "onward/schema-changed", Detail: "the outbox is not as the migrations made it"}

// Fault is an object of an outbox that is not as the migrations made it.
type Fault struct {
	Object  string // for example "index outbox_messages_id"
	Problem string // in words
	Repair  string // what to run, or where to look
}

// Validate compares the outbox with what the migrations of this program make: tables, indexes, triggers, views, which SQLite keeps
// as the text of their CREATE. It changes nothing. Objects that others have added are left alone.
//
// Errors: store.ErrDatabaseUnsupported, store.ErrSchemaMissing, store.ErrSchemaOld, store.ErrSchemaNew, or the driver's own.
// A fault is no error.
func (m *Migrator) Validate(ctx context.Context) (faults []Fault, err error) {
	err = m.onLine(ctx, "validate", func(c *call) error {
		if err := checkFile(c.ctx, c.conn); err != nil {
			return err
		}
		return c.read(func() error {
			have, err := m.version(c)
			switch {
			case err != nil:
				return err
			case have == 0:
				return &outbox.Error{Code: store.ErrSchemaMissing.Code, Detail: store.ErrSchemaMissing.Detail, Hint: "create them with `onward migrate up`"}
			case have < len(m.steps):
				return &outbox.Error{
					Code: store.ErrSchemaOld.Code, Detail: "step " + m.steps[have].String() + " is missing",
					Hint: "bring them up to date with `onward migrate up`",
				}
			case have > len(m.steps):
				return m.newer(have)
			}
			faults, err = m.faults(c)
			return err
		})
	})
	return faults, err
}

var created = regexp.MustCompile(`(?m)^CREATE (TABLE|INDEX|UNIQUE INDEX|TRIGGER|VIEW) (\w+)`)

// faults compares the CREATE of each object. Later steps that change a table have to say so here.
func (m *Migrator) faults(c *call) (faults []Fault, err error) {
	rows, err := c.conn.QueryContext(c.ctx, `SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	have := map[string]string{}
	for rows.Next() {
		var object, text string
		if err := rows.Scan(&object, &text); err != nil {
			return nil, err
		}
		have[object] = text
	}
	for _, step := range m.steps {
		for _, want := range creates(step.SQL) {
			text, there := have[want.object]
			look := "see step " + step.String() + " of `onward migrate print`"
			kind, _, _ := strings.Cut(want.object, " ")
			switch repair := want.text + ";"; {
			case there && sameText(text, want.text):
			case there && kind == "table":
				faults = append(faults, Fault{want.object, "has another definition", look})
			case there:
				faults = append(faults, Fault{want.object, "has another definition", "DROP " + strings.ToUpper(want.object) + "; " + repair})
			case kind == "table":
				faults = append(faults, Fault{want.object, "is missing", look})
			case !slices.ContainsFunc(faults, func(f Fault) bool { return f.Problem == "is missing" && f.Object == "table "+want.table }):
				faults = append(faults, Fault{want.object, "is missing", repair})
			}
		}
	}
	return faults, rows.Err()
}

// definition is an object as a step makes it.
type definition struct{ object, table, text string }

var onTable = regexp.MustCompile(`(?:^| )ON (\w+)`)

// creates finds the CREATE statements of a step.
func creates(text string) (all []definition) {
	text = withoutTrailing(text)
	for _, at := range created.FindAllStringSubmatchIndex(text, -1) {
		kind := strings.ToLower(strings.TrimPrefix(text[at[2]:at[3]], "UNIQUE "))
		rest := text[at[0]:]
		end := strings.Index(rest, ";\n")
		if kind == "trigger" {
			end = strings.Index(rest, "\nEND;") + len("\nEND")
		}
		d := definition{object: kind + " " + text[at[4]:at[5]], text: strings.Join(strings.Fields(rest[:end]), " ")}
		if on := onTable.FindStringSubmatch(d.text); on != nil {
			d.table = on[1]
		}
		all = append(all, d)
	}
	return all
}

var comment = regexp.MustCompile(`(?m)[ \t]*--.*$`)

// withoutTrailing drops comments: none of our texts has two hyphens in a literal.
func withoutTrailing(text string) string { return comment.ReplaceAllString(text, "") }

// sameText compares definitions but for space, comments and quotes, which SQLite and its shell may have put elsewhere.
func sameText(a, b string) bool {
	plain := func(s string) string {
		return strings.NewReplacer(`"`, "", " ", "").Replace(strings.Join(strings.Fields(withoutTrailing(s)), " "))
	}
	return plain(a) == plain(b)
}
