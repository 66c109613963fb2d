package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
)

// openPool makes the process's connections; it connects when the first is asked for.
func openPool(ctx context.Context, d config.Database) (*pgxpool.Pool, error) {
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
	if d.StatementTimeout > 0 {
		parameter("statement_timeout", strconv.FormatInt(d.StatementTimeout.Milliseconds(), 10))
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

// withPool calls f with the configured database.
func (a *app) withPool(ctx context.Context, f func(ctx context.Context, pool *pgxpool.Pool, d config.Database) error) error {
	c, err := a.load(false)
	if err != nil {
		return err
	}
	if err := c.NeedDatabase(); err != nil {
		return err
	}
	pool, err := openPool(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(ctx, pool, c.Database)
}

// withAdmin calls f with what people ask of the configured outbox.
func (a *app) withAdmin(ctx context.Context, f func(ctx context.Context, admin store.Admin) error) error {
	return a.withPool(ctx, func(ctx context.Context, pool *pgxpool.Pool, d config.Database) error {
		admin, err := postgres.NewAdmin(pool, postgres.Config{Schema: d.Schema, TablePrefix: d.TablePrefix})
		if err != nil {
			return err
		}
		return f(ctx, admin)
	})
}
