package demo

import (
	"context"
	"crypto/sha256"
	"database/sql"
	_ "embed" // the statements
	"encoding/hex"
	"fmt"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store/sqlite"
)

//go:embed queries/schema.sql
var schemaSQL string

//go:embed queries/order.sql
var orderSQL string

//go:embed queries/note.sql
var noteSQL string

//go:embed queries/ledger.sql
var ledgerSQL string

// service is the order service: it changes orders, and announces each change in the same transaction.
type service struct {
	db   *sql.DB
	out  outbox.Writer[*sql.Tx]
	work *workload
	tell func(committed bool)

	rolledBack map[string]bool // ids of messages
}

// openService makes the file, the tables of the outbox, and the service's own.
func openService(ctx context.Context, url string, work *workload, tell func(committed bool)) (*service, error) {
	db, err := sqlite.OpenDB(ctx, url, sqlite.FileConfig{Create: true})
	if err != nil {
		return nil, err
	}
	if err := sqlite.Migrate(ctx, db, sqlite.MigrateConfig{}); err != nil {
		_ = db.Close()
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schemaSQL); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("make the service's tables: %w", err)
	}
	return &service{db: db, out: sqlite.NewSQLWriter(sqlite.WriterConfig{}), work: work, tell: tell, rolledBack: map[string]bool{}}, nil
}

// run changes orders at this rate a second until ctx ends. What it could not do in time it catches up with, up to a second's
// worth.
func (s *service) run(ctx context.Context, rate int) error {
	each := time.Second / time.Duration(rate)
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		if late := now.Add(-time.Second); due.Before(late) {
			due = late
		}
		for !due.After(now) && ctx.Err() == nil {
			// A transaction that was begun is finished: its end is known then, and the ledger is what it says.
			if err := s.apply(context.WithoutCancel(ctx), s.work.next()); err != nil {
				return fmt.Errorf("the order service: %w", err)
			}
			due = due.Add(each)
		}
		timer.Reset(time.Until(due))
	}
}

// apply is one transaction: the order, the message, and the ledger; all of it, or nothing.
func (s *service) apply(ctx context.Context, c change) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, orderSQL, c.Order, c.Region, c.Customer, c.TotalCents, c.State); err != nil {
		return err
	}
	if _, err := s.out.Write(ctx, tx, c.Message); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, noteSQL, c.Message.ID.String(), c.Order, c.N, digest(c.Message.Payload)); err != nil {
		return err
	}
	if c.RolledBack {
		s.rolledBack[c.Message.ID.String()] = true
		s.tell(false)
		return tx.Rollback()
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.tell(true)
	return nil
}

func (s *service) ledger(ctx context.Context) (entries []Entry, err error) {
	rows, err := s.db.QueryContext(ctx, ledgerSQL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var e Entry
		if err := rows.Scan(&e.ID, &e.Key, &e.N, &e.Digest); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

func digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}
