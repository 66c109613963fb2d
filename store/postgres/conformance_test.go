package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
	"github.com/onwardhq/onward/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return harness(t, newOutbox(t, sizeOf(t, "ONWARD_TEST_PARTITIONS", 8)))
	})
}

// harness gives each part no more than the grants that are shipped for it: producers, relays and people have roles of their own.
func harness(t *testing.T, db *pgtest.DB) storetest.Harness {
	t.Helper()
	return harnessOf(t, db, db.As(t, "onward_producer"), db.As(t, "onward_admin"), func(t *testing.T) store.Store {
		t.Helper()
		return openStore(t, db, db.As(t, "onward_relay", func(c *pgxpool.Config) { c.MaxConns = 4 }))
	})
}

func harnessOf(t *testing.T, db *pgtest.DB, producers, people *pgxpool.Pool, open func(*testing.T) store.Store) storetest.Harness {
	t.Helper()
	admin, err := NewAdmin(people, Config{Schema: db.Schema, TablePrefix: db.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(ignore bool) func(*testing.T) storetest.Tx {
		w := NewWriter(WriterConfig{Schema: db.Schema, TablePrefix: db.Prefix, IgnoreDuplicates: ignore})
		return func(t *testing.T) storetest.Tx {
			t.Helper()
			tx, err := producers.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return storetest.Transaction(w, tx, tx.Commit, tx.Rollback)
		}
	}
	return storetest.Harness{
		Open: open, Begin: begin(false), BeginIgnoring: begin(true), Admin: admin, Tracker: admin,
		Position: func(t *testing.T, sink string, id outbox.ID) (position string) {
			t.Helper()
			err := db.Pool.QueryRow(t.Context(), `SELECT position FROM `+db.Table("positions")+` WHERE sink = $1 AND id = $2`,
				sink, [16]byte(id)).Scan(&position)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				t.Fatal(err)
			}
			return position
		},
		Pauses: func(t *testing.T, sink string, n int) {
			t.Helper()
			db.Exec(t, `INSERT INTO `+db.Table("pauses")+` (sink, kind, name, reason, actor)
				SELECT $1, 'key', 'key-' || n, 'a test', 'ann' FROM generate_series(0, $2::int - 1) n`, sink, n)
		},
		Audit: func(t *testing.T) []storetest.AuditLine {
			t.Helper()
			rows, err := db.Pool.Query(context.Background(),
				`SELECT actor, action, sink, reason, coalesce(message_id, '00000000-0000-0000-0000-000000000000') FROM `+db.Table("audit")+` ORDER BY id`)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l storetest.AuditLine, err error) {
				err = row.Scan(&l.Actor, &l.Action, &l.Sink, &l.Reason, (*[16]byte)(&l.ID))
				return l, err
			})
			if err != nil {
				t.Fatal(err)
			}
			return lines
		},
	}
}
