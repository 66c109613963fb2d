package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// poolerPatience is how long a pooler may take to find a second session of the server; with one alone nothing can be told.
const poolerPatience = 3 * time.Second

// checkPooler refuses a pool that prepares statements where they do not stay: a pooler in transaction mode gives each transaction
// another session of the server, which does not know them. Sooner or later, and never in a test of one connection, statements fail.
func (s *Store) checkPooler(ctx context.Context) error {
	switch s.pool.Config().ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement:
	default:
		return nil
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", opOpen, err)
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid); err != nil {
		return fmt.Errorf("%s: %w", opOpen, err)
	}
	if pid == conn.Conn().PgConn().PID() {
		return nil // the session's own process: nobody stands between
	}
	ctx, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	if err := s.keepsStatements(ctx, conn.Conn()); err != nil {
		return &outbox.Error{
			Code: store.ErrDatabaseUnsupported.Code, Op: opOpen, Err: err,
			Detail: "the connections lead through a pooler that does not keep prepared statements",
			Hint:   "set database.prepared_statements to false (in Go: ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe)",
		}
	}
	return nil
}

// keepsStatements prepares a statement, keeps the session of the server that has it busy, and asks for it again. nil where it is
// still known, or nothing can be told.
func (s *Store) keepsStatements(ctx context.Context, conn *pgx.Conn) error {
	const name = "onward_probe"
	var refused *pgconn.PgError
	if _, err := conn.Prepare(ctx, name, `SELECT 1`); err != nil {
		if errors.As(err, &refused) && refused.Code == "42P05" { // somebody else's, of that name
			return err
		}
		return nil // what else is wrong comes up where it is asked for
	}
	defer func() { _ = conn.Deallocate(context.WithoutCancel(ctx), name) }()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`, pgx.QueryExecModeExec); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, name)
		return err
	})
	if errors.As(err, &refused) && refused.Code == "26000" { // no such statement
		return err
	}
	return nil
}
