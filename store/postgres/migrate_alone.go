package postgres

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// stepAlone runs a step outside a transaction, under a lock of the session: behind a pooler such a step needs a direct
// connection. It waits for running transactions as long as they take, because nobody waits behind it; the context ends it.
func (m *Migrator) stepAlone(ctx context.Context, conn *pgx.Conn, next Migration) (err error) {
	if err := m.tryUntil(ctx, conn, `SELECT pg_try_advisory_lock(hashtextextended($1, 0))`); err != nil {
		return err
	}
	defer func() {
		if conn.IsClosed() { // by the context's end: the lock went with it
			return
		}
		ctx := context.WithoutCancel(ctx)
		_, unlock := conn.Exec(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, m.lock())
		err = errors.Join(err, unlock, execAll(ctx, conn, `RESET lock_timeout; RESET statement_timeout; RESET search_path`))
	}()
	if now, err := m.pending(ctx, conn); err != nil || now == nil || now.Version != next.Version {
		return err
	}
	if m.config.Report != nil {
		m.config.Report(next)
	}
	if err := execAll(ctx, conn, `SET lock_timeout = 0; SET statement_timeout = 0; SET search_path = pg_catalog`); err != nil {
		return err
	}
	if err := m.dropBrokenIndexes(ctx, conn, next); err != nil {
		return stepError(next, err)
	}
	for _, statement := range strings.Split(next.SQL, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if err := execAll(ctx, conn, statement); err != nil {
			return stepError(next, err)
		}
	}
	return m.setVersion(ctx, conn, next.Version)
}

var concurrentIndex = regexp.MustCompile(`(?i)CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)`)

// dropBrokenIndexes removes what an earlier run of the step left behind: IF NOT EXISTS would take it for the index.
func (m *Migrator) dropBrokenIndexes(ctx context.Context, conn *pgx.Conn, step Migration) error {
	var builds []string
	for _, match := range concurrentIndex.FindAllStringSubmatch(step.SQL, -1) {
		builds = append(builds, match[1])
	}
	rows, err := conn.Query(ctx, migrateFile("broken_indexes"), m.names.schema, builds)
	if err != nil {
		return err
	}
	broken, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range broken {
		if err := execAll(ctx, conn, `DROP INDEX CONCURRENTLY `+pgx.Identifier{m.names.schema, name}.Sanitize()); err != nil {
			return err
		}
	}
	return nil
}
