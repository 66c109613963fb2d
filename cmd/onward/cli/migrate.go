package cli

import (
	"context"
	"errors"

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
func (a *app) withMigrator(ctx context.Context, m migration, create bool, f func(ctx context.Context, m migrator) error) error {
	c, err := a.load(config.NeedDatabase)
	if err != nil {
		return err
	}
	c.Database.StatementTimeout = 0
	return a.withBackend(ctx, create, func(ctx context.Context, b backend) error {
		migrator, err := b.migrator(m)
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
rights, or roles of your own, by --role; the roles must exist.`,
		Example: `  onward migrate up
  onward migrate up --partitions 256 --grants
  onward migrate up --grants --role producer=orders_service --role viewer=support`,
		Args: takes(0, 0, ""),
	}
	given := roleFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if m.Roles, err = rolesOf(*given); err != nil {
			return err
		}
		return a.withMigrator(c.Context(), m, true, func(ctx context.Context, migrator migrator) error {
			if err := migrator.Up(ctx); err != nil {
				return err
			}
			s, err := migrator.Status(ctx)
			if err != nil {
				return err
			}
			return a.emitMigration(&s, false)
		})
	}
	c.Flags().IntVar(&m.Partitions, "partitions", 0, "`number` of partitions of a new outbox, a power of two; default 64")
	c.Flags().BoolVar(&m.Grants, "grants", false, "give the shipped roles their rights as well")
	c.Flags().DurationVar(&m.LockTimeout, "lock-timeout", 0, "how `long` a step waits for a lock; default 5s")
	return c
}

func roleFlag(c *cobra.Command) *map[string]string {
	return c.Flags().StringToString("role", nil, "who the grants are for: `kind=name`, kind is producer, relay, admin or viewer; default onward_ and the kind")
}

func rolesOf(given map[string]string) (postgres.Roles, error) {
	var r postgres.Roles
	names := map[string]*string{"producer": &r.Producer, "relay": &r.Relay, "admin": &r.Admin, "viewer": &r.Viewer}
	for kind, name := range given {
		at, known := names[kind]
		if !known || name == "" {
			return r, &outbox.Error{
				Code: outbox.ErrConfigInvalid.Code, Op: "--role " + kind + "=" + name, Detail: "not a role of an outbox",
				Hint: "write producer=NAME, relay=NAME, admin=NAME or viewer=NAME",
			}
		}
		*at = name
	}
	return r, nil
}

func newMigrateStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show the version of the tables, and which steps were run and are missing",
		Example: `  onward migrate status -o json`,
		Args:    takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withMigrator(c.Context(), migration{}, false, func(ctx context.Context, m migrator) error {
				s, err := m.Status(ctx)
				if err != nil {
					return err
				}
				return a.emitMigration(&s, true)
			})
		},
	}
}

type migrationView struct {
	Version    int        `json:"version"` // 0: there are no tables
	Target     int        `json:"target"`
	Partitions int        `json:"partitions"`
	Applied    []stepView `json:"applied"`
	Pending    []stepView `json:"pending"`
}

type stepView struct {
	Version     int    `json:"version"`
	Name        string `json:"name"`
	Locks       string `json:"locks"`
	Transaction bool   `json:"transaction"`
}

func (a *app) emitMigration(s *postgres.MigrationStatus, asTable bool) error {
	view := migrationView{Version: s.Version, Target: s.Target, Partitions: s.Partitions, Applied: stepViews(s.Applied), Pending: stepViews(s.Pending)}
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
	if a.output == outTable && !asTable {
		return nil
	}
	return a.emit(view, []any{view}, func() *table {
		t := newTable("STEP", "STATE", "TRANSACTION", "LOCKS")
		for _, p := range s.Applied {
			t.add(text(p.String()), text("applied"), yesCell(p.Transaction), text(p.Locks))
		}
		for _, p := range s.Pending {
			t.add(text(p.String()), text("pending"), yesCell(p.Transaction), text(p.Locks))
		}
		return t
	})
}

func stepViews(steps []postgres.Migration) []stepView {
	views := make([]stepView, len(steps))
	for i, s := range steps {
		views[i] = stepView{s.Version, s.Name, s.Locks, s.Transaction}
	}
	return views
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
	}
	given := roleFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		c, err := a.load(config.NeedNothing)
		if err != nil {
			return err
		}
		if m.Roles, err = rolesOf(*given); err != nil {
			return err
		}
		var migrator migrator
		if isFile(c.Database) {
			migrator, err = newFileMigrator(nil, c.Database, m)
		} else {
			m.Schema, m.TablePrefix = c.Database.Schema, c.Database.TablePrefix
			migrator, err = postgres.NewMigrator(nil, m)
		}
		if err != nil {
			return err
		}
		return migrator.Print(a.env.Out)
	}
	c.Flags().IntVar(&m.Partitions, "partitions", 0, "`number` of partitions, a power of two; default 64")
	c.Flags().BoolVar(&m.Grants, "grants", false, "print the grants instead")
	return c
}

func newMigrateValidate(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Check that the tables are what this program works with",
		Long: `Checks that the database can hold an outbox, that the tables are there and have this program's version,
and that they, their indexes, triggers, functions and sequences are as the migrations made them; what is
not is listed with what repairs it. It changes nothing. What others have added is left alone.

Exit code 0: all is well; 2: a relay would refuse to start; 1: it would start, and something that it
relies on is not as it must be.`,
		Example: `  onward migrate validate && exec onward relay`,
		Args:    takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withMigrator(c.Context(), migration{}, false, func(ctx context.Context, m migrator) error {
				faults, err := m.Validate(ctx)
				if err != nil {
					return migrateHint(err)
				}
				s, err := m.Status(ctx)
				if err != nil {
					return err
				}
				return a.emitFaults(faults, &s)
			})
		},
	}
}

type faultView struct {
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Repair  string `json:"repair"`
}

func (a *app) emitFaults(faults []postgres.Fault, s *postgres.MigrationStatus) error {
	views, lines := make([]faultView, len(faults)), make([]any, len(faults))
	for i, f := range faults {
		views[i] = faultView(f)
		lines[i] = views[i]
	}
	if len(faults) == 0 {
		a.say("version %d, %s: a relay can start", s.Version, plural(s.Partitions, "partition"))
	}
	if a.output != outTable || len(faults) > 0 {
		err := a.emit(map[string]any{"faults": views}, lines, func() *table {
			t := newTable("OBJECT", "PROBLEM", "REPAIR")
			for _, f := range faults {
				t.add(text(f.Object), text(f.Problem), text(f.Repair))
			}
			return t
		})
		if err != nil {
			return err
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &outbox.Error{
		Code: postgres.ErrSchemaChanged.Code, Op: "validate", Detail: "not as the migrations made it: " + plural(len(faults), "object"),
		Hint: "run what stands under REPAIR, and validate again",
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
