package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/store/postgres/internal/failpoint"
)

// whose says what a take-over needs.
type whose bool

const (
	takeExpired whose = false // only if the lease is over, by the database's clock
	takeOwn     whose = true  // a relay that leaves
)

const takeOverSettings = `SELECT set_config('row_security', 'off', true), set_config('lock_timeout', '2s', true),
	set_config('idle_in_transaction_session_timeout', '10s', true)`

// takeOver frees the partitions of a relay with their cursors, and ends its registration. It is the one transaction of
// several round trips: its locks are the relay's row and its cursor. A settle that holds the cursor for longer than the
// lock timeout, twice, belongs to a connection that nobody reads from any more: its session in the server is ended.
func (s *Store) takeOver(ctx context.Context, relay string, w whose) error {
	for try := range 3 {
		err := s.tryTakeOver(ctx, relay, w)
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != "55P03" { // lock_not_available
			return err
		}
		if try == 1 {
			s.log.Warn("ending the database sessions of an expired relay that hold its cursor", "relay", relay)
			if _, err := s.pool.Exec(ctx, s.text("terminate"), "onward/"+relay); err != nil {
				return fmt.Errorf("end the sessions of relay %s: %w", relay, err)
			}
		}
	}
	return nil // the next look tries again
}

func (s *Store) tryTakeOver(ctx context.Context, relay string, w whose) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, takeOverSettings); err != nil {
		return err
	}
	found, err := s.lockRelay(ctx, tx, relay, w)
	if err != nil || !found {
		return err
	}
	failpoint.Hit("postgres.takeover.locked")
	if err := s.freePartitions(ctx, tx, relay); err != nil {
		return err
	}
	failpoint.Hit("postgres.takeover.freed")
	if _, err := tx.Exec(ctx, s.text("unregister"), relay); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	failpoint.Hit("postgres.takeover.committed")
	return nil
}

// lockRelay finds nothing where the relay is alive, gone, or somebody else is at it.
func (s *Store) lockRelay(ctx context.Context, tx pgx.Tx, relay string, w whose) (found bool, err error) {
	var id string
	err = tx.QueryRow(ctx, s.text("lock_relay"), relay, bool(w)).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// freePartitions frees all that the relay holds. A settle that commits meanwhile replaces the cursor row, which the
// statement then does not see: it runs again.
func (s *Store) freePartitions(ctx context.Context, tx pgx.Tx, relay string) error {
	for range 10 {
		if _, err := tx.Exec(ctx, s.text("free"), relay); err != nil {
			return err
		}
		var left int
		if err := tx.QueryRow(ctx, s.text("held"), relay).Scan(&left); err != nil || left == 0 {
			return err
		}
	}
	return fmt.Errorf("partitions of relay %s stay held: it has no cursor", relay)
}
