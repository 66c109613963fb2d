package postgres

import (
	"context"
	_ "embed" // catalog.txt
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

func migrateFile(name string) string { return queryFile("migrate", name, nil) }

// catalogText is what catalog.sql says of an outbox that all steps have made, in the notation of our SQL files. Written by
// go test -run TestTheCatalogIsKnown -update.
//
//go:embed catalog.txt
var catalogText string

// ErrSchemaChanged: the outbox has its version and is not what the migrations made.
var ErrSchemaChanged = &outbox.Error{Code: "onward/schema-changed", Detail: "the outbox is not as the migrations made it"}

// Fault is an object of an outbox that is not as the migrations made it.
type Fault struct {
	Object  string // for example "index outbox_messages_id"
	Problem string // in words
	Repair  string // what to run, or where to look
}

// Validate compares the outbox with what the migrations of this program make: tables, columns, constraints, indexes,
// functions, the columns of views, triggers, sequences. It changes nothing and needs the right to read outbox_meta, no other. Objects that others
// have added, and other values of storage settings, are left alone.
//
// Errors: store.ErrDatabaseUnsupported, store.ErrSchemaMissing, store.ErrSchemaOld, store.ErrSchemaNew, or the database's own.
// A fault is no error.
func (m *Migrator) Validate(ctx context.Context) (faults []Fault, err error) {
	err = m.onConnection(ctx, "validate", func(conn *pgx.Conn) error {
		if err := checkServer(ctx, conn, "validate"); err != nil {
			return err
		}
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			partitions, err := m.validVersion(ctx, tx)
			if err != nil {
				return err
			}
			have, err := m.catalog(ctx, tx)
			if err != nil {
				return err
			}
			faults = m.compare(m.names.wanted(partitions), have)
			return nil
		})
	})
	return faults, err
}

// validVersion returns the number of partitions.
func (m *Migrator) validVersion(ctx context.Context, tx pgx.Tx) (int, error) {
	have, err := m.version(ctx, tx)
	if err != nil {
		return 0, err
	}
	next, err := m.pending(ctx, tx)
	switch {
	case err != nil:
		return 0, err
	case have.version == 0:
		return 0, &outbox.Error{Code: store.ErrSchemaMissing.Code, Detail: store.ErrSchemaMissing.Detail, Hint: "create them with `onward migrate up`"}
	case next != nil:
		return 0, &outbox.Error{Code: store.ErrSchemaOld.Code, Detail: "step " + next.String() + " is missing", Hint: "bring them up to date with `onward migrate up`"}
	}
	return have.partitions, nil
}

// object names something in the catalog: kind and name.
type object struct{ kind, name string }

// catalog reads what there is. The settings make every server write names in full and times in one way.
func (m *Migrator) catalog(ctx context.Context, tx pgx.Tx) (map[object]string, error) {
	if err := execAll(ctx, tx.Conn(), `SET LOCAL search_path = pg_catalog; SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO, YMD'`); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, migrateFile("catalog"), m.names.schema, m.names.prefix)
	if err != nil {
		return nil, err
	}
	have := map[object]string{}
	var o object
	var facts string
	_, err = pgx.ForEachRow(rows, []any{&o.kind, &o.name, &facts}, func() error {
		have[o] = facts
		return nil
	})
	return have, err
}

// fact is an object as it should be.
type fact struct {
	object
	facts string
}

var functionBody = regexp.MustCompile(`(?s)CREATE FUNCTION outbox_(\w+)\(.*?AS \$\$(.*?)\$\$`)

// wanted is the catalog of a whole outbox of n partitions: catalog.txt, and the functions' bodies as their step has them.
func (n names) wanted(partitions int) []fact {
	var all []fact
	for line := range strings.Lines(n.expand(catalogText, partitions)) {
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(parts) == 3 {
			all = append(all, fact{object{parts[0], parts[1]}, parts[2]})
		}
	}
	for _, text := range migrationTexts() {
		for _, f := range functionBody.FindAllStringSubmatch(text, -1) {
			o := object{"body", n.prefix + f[1]}
			all = slices.DeleteFunc(all, func(f fact) bool { return f.object == o }) // a later step may have replaced it
			all = append(all, fact{o, n.expand(f[2], partitions)})
		}
	}
	return all
}

func (m *Migrator) compare(wanted []fact, have map[object]string) []Fault {
	var faults []Fault
	steps := m.steps(m.partitions(installed{}))
	gone := map[string]bool{} // what is missing whole: its parts need no mention
	for _, w := range wanted {
		got, there := have[w.object]
		switch {
		case there && (w.kind == "setting" || sameFacts(w, got)):
			continue
		case gone["table "+w.owner()], w.kind == "body" && gone["function "+w.name]:
			continue
		case !there:
			gone[w.kind+" "+w.name] = true
			faults = append(faults, Fault{w.title(), "is missing", m.repair(steps, w, false)})
		case got == "INVALID":
			faults = append(faults, Fault{w.title(), "is not valid: its build has failed", m.repair(steps, w, true)})
		case w.kind == "body":
			faults = append(faults, Fault{w.title(), "has another body", m.repair(steps, w, true)})
		default:
			faults = append(faults, Fault{w.title(), "is " + got + "; it should be " + w.facts, m.repair(steps, w, true)})
		}
	}
	return faults
}

// owner is the table of a column or setting, else the name.
func (o object) owner() string {
	end := strings.IndexAny(o.name, ". ")
	if end < 0 {
		return o.name
	}
	return o.name[:end]
}

func (o object) title() string {
	if o.kind == "body" {
		return "function " + o.name
	}
	return o.kind + " " + o.name
}

// looks are what servers may write in another way without another meaning.
var looks = strings.NewReplacer(" ", "", "\n", "", "(", "", ")", "", `"`, "")

// sameFacts compares a function's body to the letter, and all else as different servers may write it.
func sameFacts(w fact, got string) bool {
	if w.kind == "body" {
		return w.facts == got
	}
	return strings.EqualFold(looks.Replace(w.facts), looks.Replace(got))
}

// repair says what to run: the statement of our own where it is short, else where it stands.
func (m *Migrator) repair(steps []Migration, w fact, there bool) string {
	qualified := pgx.Identifier{m.names.schema, w.name}.Sanitize()
	step, statement := statementOf(steps, w)
	look := "see step " + step + " of `onward migrate print`"
	switch w.kind {
	case "index":
		build := strings.Replace(statement, "INDEX ", "INDEX CONCURRENTLY ", 1)
		if there {
			build = "DROP INDEX CONCURRENTLY " + qualified + "; " + build
		}
		return build
	case "trigger":
		table := statement[strings.Index(statement, " ON ")+len(" ON "):]
		table, _, _ = strings.Cut(table, " ")
		if there {
			return "DROP TRIGGER " + w.name + " ON " + table + "; " + statement
		}
		return statement
	case "function", "body":
		return "run its CREATE FUNCTION of step " + step + " of `onward migrate print` as CREATE OR REPLACE FUNCTION"
	case "view":
		return "run its CREATE VIEW of step " + step + " of `onward migrate print`, after DROP VIEW IF EXISTS " + qualified
	case "setting":
		table, option, _ := strings.Cut(w.name, " ")
		return "ALTER TABLE " + pgx.Identifier{m.names.schema, table}.Sanitize() + " SET (" + option + " = " + w.facts + ");"
	case "sequence":
		if there {
			return "ALTER SEQUENCE " + qualified + " INCREMENT 1 CACHE 1 NO CYCLE;"
		}
	}
	return look
}

// statementOf finds the object's CREATE among the steps: the step, and the statement on one line.
func statementOf(steps []Migration, w fact) (step, statement string) {
	name := regexp.QuoteMeta(w.owner())
	what, ok := map[string]string{"index": "(?:UNIQUE )?INDEX", "trigger": "TRIGGER", "function": "FUNCTION", "body": "FUNCTION", "view": "VIEW", "sequence": "SEQUENCE"}[w.kind]
	if !ok {
		what = "(?:UNLOGGED )?TABLE"
	}
	create := regexp.MustCompile(`(?m)^CREATE ` + what + ` \S*\b` + name + `\b[^;]*;`)
	mentioned := regexp.MustCompile(`\b` + name + `\b`)
	for _, s := range slices.Backward(steps) {
		if found := create.FindString(s.SQL); found != "" {
			return s.String(), strings.Join(strings.Fields(found), " ")
		}
		if mentioned.MatchString(s.SQL) {
			step = s.String()
		}
	}
	if step == "" { // a constraint that the server named, with its table
		step = steps[0].String()
	}
	return step, ""
}
