package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/outbox"
)

// writing is what the writers share: from messages to statements, and from rows to receipts.
type writing struct {
	rules     outbox.Rules
	ignore    bool
	serialize []outbox.Pattern
	names     names
	fault     error // of the configuration
	committed func()
	many      form
	sql       map[string]string // by file name; those with a source by file and source: insert/source_one
}

// form is how many messages become arguments of one statement.
type form struct {
	source string // file
	args   func([]prepared) []any
}

var (
	arrays   = form{"source_arrays", arrayArgs}
	jsonText = form{"source_json", jsonArgs}
)

// A part is what one statement writes at most: it bounds memory on both sides, and stays far below the 1 GB that a message
// of the protocol may have.
const (
	partMessages = 10_000
	partBytes    = 64 << 20
)

func newWriting(c WriterConfig, many form) *writing {
	n, err := newNames(c.Schema, c.TablePrefix)
	faults := []error{err, c.Rules.Validate()}
	for _, p := range c.Serialize {
		faults = append(faults, p.Validate())
	}
	w := &writing{rules: c.Rules, ignore: c.IgnoreDuplicates, serialize: c.Serialize, committed: c.Committed, names: n, many: many, sql: map[string]string{}}
	if w.fault = errors.Join(faults...); w.fault != nil {
		return w
	}
	for _, name := range []string{"insert", "insert_ignoring", "insert_numbered", "insert_numbered_ignoring"} {
		for _, source := range []string{"source_one", many.source} {
			w.sql[name+"/"+source] = n.sql(writeFile(name, source))
		}
	}
	for _, name := range []string{"lock_keys", "written", "of_transaction", "savepoint", "release", "rollback_to"} {
		w.sql[name] = n.sql(writeFile(name, ""))
	}
	return w
}

// writeFile returns a statement with its source, and without comments, which the server need not get with each message.
func writeFile(name, source string) string {
	var b strings.Builder
	for line := range strings.Lines(queryFile("write", name, map[string]string{"source": source})) {
		if !strings.HasPrefix(line, "-- ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// query runs a statement in the caller's transaction and returns the receipts in its rows.
type query func(ctx context.Context, s statement) ([]outbox.Receipt, error)

// statement is SQL and its arguments.
type statement struct {
	sql  string
	args []any
}

// write writes the messages and returns their receipts in the order of ms.
func (w *writing) write(ctx context.Context, ms []outbox.Message, run query) ([]outbox.Receipt, error) {
	if w.fault != nil || len(ms) == 0 {
		return nil, w.fault
	}
	p, err := w.prepare(ctx, ms)
	if err != nil {
		return nil, err
	}
	found := make(map[outbox.ID]outbox.Receipt, len(p.ms))
	do := func(s statement) error {
		receipts, err := run(ctx, s)
		for _, r := range receipts {
			found[r.ID] = r
		}
		return err
	}
	for _, s := range w.statements(p) {
		if err := do(s); err != nil {
			return nil, w.refused(err, p.ms)
		}
	}
	if missing := p.missing(found); w.ignore && len(missing) > 0 {
		if err := do(w.lookup(missing)); err != nil {
			return nil, w.refused(err, p.ms)
		}
	}
	if missing := p.missing(found); len(missing) > 0 {
		return nil, notWritten(missing)
	}
	receipts := make([]outbox.Receipt, len(ms))
	for i, at := range p.at {
		receipts[i] = found[p.ms[at].ID]
	}
	return receipts, nil
}

// statements are what writes the messages, in the order in which they must run.
func (w *writing) statements(p preparation) []statement {
	var all []statement
	for part := range p.parts() {
		all = append(all, w.insert(part))
	}
	if keys := p.serializedKeys(); len(keys) > 0 && (w.ignore || len(all) > 1) {
		all = append([]statement{{w.sql["lock_keys"], []any{jsonOf(keys)}}}, all...)
	}
	return all
}

func (w *writing) insert(ms []prepared) statement {
	name := "insert"
	for i := range ms {
		if ms[i].Serialize {
			name = "insert_numbered"
			break
		}
	}
	if w.ignore {
		name += "_ignoring"
	}
	if len(ms) == 1 {
		return statement{w.sql[name+"/source_one"], oneArgs(&ms[0])}
	}
	return statement{w.sql[name+"/"+w.many.source], w.many.args(ms)}
}

// lookup asks where messages were written.
func (w *writing) lookup(ms []prepared) statement {
	ids := make([]outbox.ID, len(ms))
	for i := range ms {
		ids[i] = ms[i].ID
	}
	return statement{w.sql["written"], []any{jsonOf(ids)}}
}

func notWritten(ms []prepared) error {
	return fmt.Errorf("write message %s: the database took it and returned no row: does a rule, trigger or policy on the table drop it?", ms[0].ID)
}
