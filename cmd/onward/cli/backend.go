package cli

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/sqlite"
)

// backend is the database of an outbox: which one is said by the scheme of database.url.
type backend interface {
	// open returns the store; its errors are those of postgres.Open.
	open(ctx context.Context, log *slog.Logger) (store.Store, error)
	admin() (store.Admin, error)
	examiner() (doctor.Examiner, error)
	migrator(m migration) (migrator, error)
	// place names the tables for people.
	place() string
	close()
}

// migration is what a person may say of migrations.
type migration = postgres.MigrateConfig

// migrator brings tables up to date, and says where they stand.
type migrator interface {
	Up(ctx context.Context) error
	Status(ctx context.Context) (postgres.MigrationStatus, error)
	Validate(ctx context.Context) ([]postgres.Fault, error)
	Print(w io.Writer) error
}

func isFile(d config.Database) bool { return strings.HasPrefix(d.URL, "sqlite:") }

// openBackend prepares the database; one that is asked over a network is connected to when the first question is asked. create:
// a file that is missing is made.
func openBackend(ctx context.Context, d config.Database, create bool) (backend, error) {
	if isFile(d) {
		db, err := sqlite.OpenDB(ctx, d.URL, sqlite.FileConfig{Create: create})
		if err != nil {
			return nil, err
		}
		return fileBackend{db, d}, nil
	}
	pool, err := openPool(ctx, d)
	if err != nil {
		return nil, err
	}
	return serverBackend{pool, d}, nil
}

// serverBackend is PostgreSQL.
type serverBackend struct {
	pool *pgxpool.Pool
	d    config.Database
}

func (b serverBackend) close()        { b.pool.Close() }
func (b serverBackend) place() string { return b.d.Schema + "." + b.d.TablePrefix }

func (b serverBackend) open(ctx context.Context, log *slog.Logger) (store.Store, error) {
	s, err := postgres.Open(ctx, b.pool, postgres.Config{
		Schema: b.d.Schema, TablePrefix: b.d.TablePrefix, Logger: log, ListenURL: b.d.ListenURL,
		PublishWhen: postgres.PublishWhen(b.d.PublishWhen),
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b serverBackend) admin() (store.Admin, error) {
	return postgres.NewAdmin(b.pool, postgres.Config{Schema: b.d.Schema, TablePrefix: b.d.TablePrefix})
}

func (b serverBackend) examiner() (doctor.Examiner, error) {
	return postgres.NewExaminer(b.pool, postgres.Config{Schema: b.d.Schema, TablePrefix: b.d.TablePrefix, PublishWhen: postgres.PublishWhen(b.d.PublishWhen)})
}

func (b serverBackend) migrator(m migration) (migrator, error) {
	m.Schema, m.TablePrefix = b.d.Schema, b.d.TablePrefix
	return postgres.NewMigrator(b.pool, m)
}

// fileBackend is SQLite.
type fileBackend struct {
	db *sql.DB
	d  config.Database
}

func (b fileBackend) close()        { _ = b.db.Close() } // what was written is written
func (b fileBackend) place() string { return b.d.TablePrefix }

func (b fileBackend) open(ctx context.Context, log *slog.Logger) (store.Store, error) {
	s, err := sqlite.Open(ctx, b.db, sqlite.Config{TablePrefix: b.d.TablePrefix, Logger: log})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b fileBackend) admin() (store.Admin, error) {
	return sqlite.NewAdmin(b.db, sqlite.Config{TablePrefix: b.d.TablePrefix})
}

func (b fileBackend) examiner() (doctor.Examiner, error) {
	return sqlite.NewExaminer(b.db, sqlite.Config{TablePrefix: b.d.TablePrefix})
}

func (b fileBackend) migrator(m migration) (migrator, error) { return newFileMigrator(b.db, b.d, m) }

// fileMigrator says in the server's words what a file's migrator says.
type fileMigrator struct{ *sqlite.Migrator }

func newFileMigrator(db *sql.DB, d config.Database, m migration) (migrator, error) {
	if m.Grants || m.Roles != (postgres.Roles{}) {
		return nil, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "migrate", Detail: "a file has no roles: --grants and --role are for PostgreSQL",
			Hint: "who may read and write the file is said by its permissions",
		}
	}
	c := sqlite.MigrateConfig{TablePrefix: d.TablePrefix, Partitions: m.Partitions, LockTimeout: m.LockTimeout}
	if m.Report != nil {
		c.Report = func(step sqlite.Migration) { m.Report(postgres.Migration(step)) }
	}
	of, err := sqlite.NewMigrator(db, c)
	if err != nil {
		return nil, err
	}
	return fileMigrator{of}, nil
}

func (m fileMigrator) Status(ctx context.Context) (postgres.MigrationStatus, error) {
	s, err := m.Migrator.Status(ctx)
	steps := func(of []sqlite.Migration) (all []postgres.Migration) {
		for _, step := range of {
			all = append(all, postgres.Migration(step))
		}
		return all
	}
	return postgres.MigrationStatus{
		Version: s.Version, Target: s.Target, Partitions: s.Partitions, Applied: steps(s.Applied), Pending: steps(s.Pending),
	}, err
}

func (m fileMigrator) Validate(ctx context.Context) (faults []postgres.Fault, err error) {
	found, err := m.Migrator.Validate(ctx)
	for _, f := range found {
		faults = append(faults, postgres.Fault(f))
	}
	return faults, err
}
