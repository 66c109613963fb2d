package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// openPool makes the process's connections; it connects when the first is asked for.
func openPool(ctx context.Context, d config.Database) (*pgxpool.Pool, error) {
	c, err := poolConfig(d)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

func poolConfig(d config.Database) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "read database.url " + config.MaskURL(d.URL), Err: err} // pgx masks too
	}
	c.MaxConns = int32(d.MaxConnections) //nolint:gosec // checked with the configuration
	c.ConnConfig.ConnectTimeout = 10 * time.Second
	parameter := func(name, value string) {
		if _, said := c.ConnConfig.RuntimeParams[name]; !said {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}
	parameter("application_name", "onward")
	if !d.PreparedStatements {
		// Each statement is described once and then sent whole. A pooler that keeps no statements takes no settings either.
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else if d.StatementTimeout > 0 {
		parameter("statement_timeout", strconv.FormatInt(d.StatementTimeout.Milliseconds(), 10))
	}
	return c, nil
}

// withBackend calls f with the configured database.
func (a *app) withBackend(ctx context.Context, create bool, f func(ctx context.Context, b backend) error) error {
	c, err := a.load(config.NeedDatabase)
	if err != nil {
		return err
	}
	b, err := openBackend(ctx, c.Database, create)
	if err != nil {
		return err
	}
	defer b.close()
	defer a.tell()()
	return f(ctx, b)
}

// withAdmin calls f with what people ask of the configured outbox. Tables of another version are looked at as well as they
// can be, with a warning: an incident does not wait for a deployment.
func (a *app) withAdmin(ctx context.Context, f func(ctx context.Context, admin store.Admin) error) error {
	return a.withVersion(ctx, f, func(err error) error {
		a.say("warning: %s\nhint: %s", err, outbox.Hint(err))
		return nil
	})
}

// withRepair calls f with what people change. Tables of another version are refused: what an act does to them, this program
// does not know.
func (a *app) withRepair(ctx context.Context, f func(ctx context.Context, admin store.Admin) error) error {
	return a.withVersion(ctx, f, func(err error) error { return err })
}

// withVersion calls f after it has compared the tables' version with this program's; differs decides about a difference.
func (a *app) withVersion(ctx context.Context, f func(ctx context.Context, admin store.Admin) error, differs func(error) error) error {
	return a.withBackend(ctx, false, func(ctx context.Context, b backend) error {
		if err := checkVersion(ctx, b); outbox.CodeOf(err) == store.ErrSchemaOld.Code || outbox.CodeOf(err) == store.ErrSchemaNew.Code {
			if err := differs(err); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		admin, err := b.admin()
		if err != nil {
			return err
		}
		return f(ctx, admin)
	})
}

// checkVersion refuses tables of another version than this program's.
func checkVersion(ctx context.Context, b backend) error {
	migrator, err := b.migrator(migration{})
	if err != nil {
		return err
	}
	s, err := migrator.Status(ctx)
	if e := (*outbox.Error)(nil); errors.As(err, &e) {
		return err
	}
	if inner := errors.Unwrap(err); inner != nil { // it speaks of migrations, which nobody asked about
		return fmt.Errorf("read the outbox's version: %w", inner)
	}
	if err != nil {
		return err
	}
	refuse := func(code outbox.Code, hint string) error {
		return &outbox.Error{
			Code: code, Op: "compare versions", Hint: hint,
			Detail: fmt.Sprintf("the tables have version %d, this program works with %d", s.Version, s.Target),
		}
	}
	switch {
	case s.Version == 0:
		return &outbox.Error{
			Code: store.ErrSchemaMissing.Code, Op: "look for the outbox", Detail: fmt.Sprintf("there are no tables %s...", b.place()),
			Hint: "create them with `onward migrate up`, or check database.schema and database.table_prefix",
		}
	case s.Version < s.Target:
		return refuse(store.ErrSchemaOld.Code, "bring them up to date with `onward migrate up`")
	case s.Version > s.Target:
		return refuse(store.ErrSchemaNew.Code, "use a newer onward; this one is "+version().Version)
	}
	return nil
}
