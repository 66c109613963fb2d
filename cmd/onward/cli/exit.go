package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/sqlite"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2 // wrong usage or configuration
	exitNotFound    = 3
	exitRefused     = 4 // conflict, reorder, unsafe, not allowed
	exitUnreachable = 5
	exitSignalled   = 6 // stopped by a second signal
)

// errConfirmationRequired is an act that nobody confirmed.
var errConfirmationRequired = &outbox.Error{Code: "onward/confirmation-required", Detail: "nobody confirmed it"}

// usageError is a command line that cannot be understood.
type usageError struct {
	err     error
	command string // whose help explains it
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitByCode is what errors of our own end in; every other one is a failure.
var exitByCode = map[outbox.Code]int{
	outbox.ErrConfigInvalid.Code:      exitUsage,
	config.CodeUnknownKey:             exitUsage,
	outbox.ErrIdentifierInvalid.Code:  exitUsage,
	outbox.ErrIDInvalid.Code:          exitUsage,
	store.ErrSchemaMissing.Code:       exitUsage,
	store.ErrSchemaOld.Code:           exitUsage,
	store.ErrSchemaNew.Code:           exitUsage,
	store.ErrDatabaseUnsupported.Code: exitUsage,
	store.ErrFilterInvalid.Code:       exitUsage,
	store.ErrReasonRequired.Code:      exitUsage,
	store.ErrPauseInvalid.Code:        exitUsage,
	"onward/broker-unsafe":            exitUsage,
	store.ErrNotFound.Code:            exitNotFound,
	store.ErrStateConflict.Code:       exitRefused,
	store.ErrReorderRefused.Code:      exitRefused,
	store.ErrNameTaken.Code:           exitRefused,
	store.ErrFenced.Code:              exitRefused,
	errConfirmationRequired.Code:      exitRefused,
	relay.ErrUnsafe.Code:              exitRefused,
	"onward/forbidden":                exitRefused,
	"onward/broker-unavailable":       exitUnreachable,
}

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if u := (*usageError)(nil); errors.As(err, &u) {
		return exitUsage
	}
	if code, ok := exitByCode[outbox.CodeOf(err)]; ok {
		return code
	}
	if denied(err) {
		return exitRefused
	}
	if unreachable(err) {
		return exitUnreachable
	}
	return exitFailed
}

// denied reports that the database does not let this user do it.
func denied(err error) bool {
	pg := (*pgconn.PgError)(nil)
	return errors.As(err, &pg) && pg.Code == "42501"
}

// unreachable reports that nothing answered, or that the server let nobody in.
func unreachable(err error) bool {
	if errors.Is(err, sqlite.ErrUnavailable) || errors.Is(err, sqlite.ErrBusy) {
		return true
	}
	if c := (*pgconn.ConnectError)(nil); errors.As(err, &c) {
		return true
	}
	if f := (*fs.PathError)(nil); errors.As(err, &f) {
		return false // a file or stdout; the errors of the system look like those of the network
	}
	if n := net.Error(nil); errors.As(err, &n) {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// explain says on stderr what went wrong and what to do about it.
func (a *app) explain(err error) {
	if errors.Is(err, errSaid) {
		return
	}
	p := a.paint(a.env.ErrIsTerminal)
	a.print("%s %s\n", p("error:", red), oneLineEach(headline(err)))
	if faults := config.Faults(nil); errors.As(err, &faults) {
		for _, f := range faults {
			a.print("  %s\n", visible(f.String()))
		}
	}
	for _, hint := range a.hints(err) {
		a.print("%s %s\n", p("hint:", cyan), hint)
	}
}

// errSaid is behind errors that were said already, message by message.
var errSaid = errors.New("said already")

// headline is the error's text; faults of the configuration follow it, a line each.
func headline(err error) string {
	if faults := config.Faults(nil); errors.As(err, &faults) {
		if e := (*outbox.Error)(nil); errors.As(err, &e) {
			return (&outbox.Error{Code: e.Code, Op: e.Op, Detail: e.Detail}).Error()
		}
	}
	return err.Error()
}

func oneLineEach(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = visible(strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n  ")
}

// connectHint is what to do where the server answers and lets nobody in.
func connectHint(err error) string {
	pg := (*pgconn.PgError)(nil)
	if !errors.As(err, &pg) {
		return ""
	}
	switch {
	case pg.Code == "3D000":
		return "create the database, or correct its name in database.url"
	case strings.HasPrefix(pg.Code, "28"): // authentication, and what pg_hba.conf says
		return "the server runs, and refuses this user, password or address: correct database.url, or what the server allows"
	case forgets(pg):
		return "database.url leads to a pooler that keeps neither settings nor prepared statements: set database.prepared_statements to false"
	}
	return ""
}

// forgets reports what a pooler says that keeps neither a session's settings nor its prepared statements.
func forgets(pg *pgconn.PgError) bool {
	return pg.Code == "08P01" && strings.Contains(pg.Message, "startup parameter") || pg.Code == "26000" || pg.Code == "42P05"
}

func (a *app) hints(err error) []string {
	if hint := outbox.Hint(err); hint != "" {
		return []string{hint}
	}
	u := (*usageError)(nil)
	switch {
	case errors.As(err, &u):
		return []string{"`" + u.command + " --help` shows how it is used"}
	case denied(err):
		return []string{"the database's user lacks a right: `onward migrate print --grants` shows the roles and what each may do"}
	case connectHint(err) != "":
		return []string{connectHint(err)}
	case unreachable(err) && a.config != nil && a.config.Database.URL != "":
		return []string{"does the server run, and is database.url right? It is " + config.MaskURL(a.config.Database.URL)}
	case errors.Is(err, context.DeadlineExceeded):
		return []string{"the database took longer than database.statement_timeout"}
	}
	return nil
}
