package cli

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
)

func newMigrate(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "migrate",
		Short: "Create, update and check the outbox's tables",
		Long: `Brings the tables to this program's version. Steps are numbered, run once each, and are safe beside
running services and relays; several programs may migrate at once.`,
		Example: `  onward migrate up --partitions 64
  onward migrate status
  onward migrate print | psql "$DATABASE_URL"
  onward migrate validate`,
	}, newMigrateUp(a), newMigrateStatus(a), newMigratePrint(a), newMigrateValidate(a))
}

// withMigrator calls f with a migrator of the configured outbox. Migrations have no statement timeout of ours: an index
// takes what it takes.
func (a *app) withMigrator(ctx context.Context, m postgres.MigrateConfig, f func(ctx context.Context, m *postgres.Migrator) error) error {
	c, err := a.load(config.NeedDatabase)
	if err != nil {
		return err
	}
	c.Database.StatementTimeout = 0
	return a.withPool(ctx, func(ctx context.Context, pool *pgxpool.Pool, d config.Database) error {
		m.Schema, m.TablePrefix = d.Schema, d.TablePrefix
		migrator, err := postgres.NewMigrator(pool, m)
		if err != nil {
			return err
		}
		return f(ctx, migrator)
	})
}

func newMigrateUp(a *app) *cobra.Command {
	m := postgres.MigrateConfig{Report: func(step postgres.Migration) { a.say("%s (locks: %s)", step, step.Locks) }}
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the steps that are missing",
		Long: `Runs the steps that are missing; where there are none it does nothing. The schema is created if it
is not there. A step that cannot get its lock gives up rather than make everybody wait behind it: run
it again.

The number of partitions bounds how many relays can share the work; it is chosen once, for a new
outbox. --grants gives the roles onward_producer, onward_relay, onward_admin and onward_viewer their
rights; the roles must exist.`,
		Example: `  onward migrate up
  onward migrate up --partitions 256 --grants`,
		Args: takes(0, 0, ""),
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.withMigrator(c.Context(), m, func(ctx context.Context, migrator *postgres.Migrator) error {
			if err := migrator.Up(ctx); err != nil {
				return err
			}
			s, err := migrator.Status(ctx)
			if err != nil {
				return err
			}
			return a.emitMigration(&s)
		})
	}
	c.Flags().IntVar(&m.Partitions, "partitions", 0, "`number` of partitions of a new outbox, a power of two; default 64")
	c.Flags().BoolVar(&m.Grants, "grants", false, "give the shipped roles their rights as well")
	c.Flags().DurationVar(&m.LockTimeout, "lock-timeout", 0, "how `long` a step waits for a lock; default 5s")
	return c
}

func newMigrateStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show the version of the tables and the steps that are missing",
		Example: `  onward migrate status -o json`,
		Args:    takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withMigrator(c.Context(), postgres.MigrateConfig{}, func(ctx context.Context, m *postgres.Migrator) error {
				s, err := m.Status(ctx)
				if err != nil {
					return err
				}
				return a.emitMigration(&s)
			})
		},
	}
}

type migrationView struct {
	Version    int        `json:"version"` // 0: there are no tables
	Target     int        `json:"target"`
	Partitions int        `json:"partitions"`
	Pending    []stepView `json:"pending"`
}

type stepView struct {
	Version     int    `json:"version"`
	Name        string `json:"name"`
	Locks       string `json:"locks"`
	Transaction bool   `json:"transaction"`
}

func (a *app) emitMigration(s *postgres.MigrationStatus) error {
	view := migrationView{Version: s.Version, Target: s.Target, Partitions: s.Partitions, Pending: []stepView{}}
	for _, p := range s.Pending {
		view.Pending = append(view.Pending, stepView{p.Version, p.Name, p.Locks, p.Transaction})
	}
	switch {
	case s.Version == 0:
		a.say("there are no tables yet: `onward migrate up` creates them")
	case s.Version > s.Target:
		a.say("the tables are newer than this program")
	case len(s.Pending) > 0:
		a.say("%s missing: `onward migrate up` runs them", plural(len(s.Pending), "step"))
	default:
		a.say("the tables are up to date: version %d, %s", s.Version, plural(s.Partitions, "partition"))
	}
	if a.output == outTable && len(s.Pending) == 0 {
		return nil
	}
	return a.emit(view, []any{view}, func() *table {
		t := newTable("STEP", "TRANSACTION", "LOCKS")
		for _, p := range s.Pending {
			t.add(text(p.String()), yesCell(p.Transaction), text(p.Locks))
		}
		return t
	})
}

func newMigratePrint(a *app) *cobra.Command {
	var m postgres.MigrateConfig
	c := &cobra.Command{
		Use:   "print",
		Short: "Print the SQL of all steps, for psql or another migration tool",
		Long: `Prints what ` + "`onward migrate up`" + ` runs on an empty database, each step with the locks that it takes; with
--grants what gives the shipped roles their rights. It asks no database.`,
		Example: `  onward migrate print > outbox.sql
  onward migrate print --grants | psql "$DATABASE_URL"`,
		Args: takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			c, err := a.load(config.NeedNothing)
			if err != nil {
				return err
			}
			m.Schema, m.TablePrefix = c.Database.Schema, c.Database.TablePrefix
			migrator, err := postgres.NewMigrator(nil, m)
			if err != nil {
				return err
			}
			return migrator.Print(a.env.Out)
		},
	}
	c.Flags().IntVar(&m.Partitions, "partitions", 0, "`number` of partitions, a power of two; default 64")
	c.Flags().BoolVar(&m.Grants, "grants", false, "print the grants instead")
	return c
}

func newMigrateValidate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Check that the tables are what this program works with",
		Long: `Checks that the tables are there and have this program's version, and that the database can hold an
outbox. Exit code 0: a relay can start; 2: it would refuse.`,
		Example: `  onward migrate validate && exec onward relay`,
		Args:    takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withPool(c.Context(), func(ctx context.Context, pool *pgxpool.Pool, d config.Database) error {
				s, err := openStore(ctx, pool, d, nil)
				if err != nil {
					return err
				}
				info, err := s.Info(ctx)
				err = errors.Join(err, s.Close())
				if err == nil {
					a.say("%s, schema %d, %s: a relay can start", info.Database, info.Schema, plural(info.Partitions, "partition"))
				}
				return migrateHint(err)
			})
		},
	}
}

// migrateHint says which command helps where the store refuses the tables and does not say so itself.
func migrateHint(err error) error {
	e := (*outbox.Error)(nil)
	if !errors.As(err, &e) || outbox.Hint(err) != "" {
		return err
	}
	hinted := *e
	switch e.Code {
	case store.ErrSchemaMissing.Code:
		hinted.Hint = "create them with `onward migrate up`"
	case store.ErrSchemaOld.Code:
		hinted.Hint = "bring them up to date with `onward migrate up`"
	case store.ErrSchemaNew.Code:
		hinted.Hint = "use a newer onward; this one is " + version().Version
	default:
		return err
	}
	return &hinted
}
