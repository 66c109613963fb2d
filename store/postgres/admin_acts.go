package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Requeue makes a dead letter the parked head of its key again, by the SQL function of that name, which has the rules.
// act.Reason is not kept: what is requeued can become dead again. A running relay takes it up within a second.
func (a *Admin) Requeue(ctx context.Context, act store.Act, acceptReorder bool) error {
	return a.act(ctx, "requeue message "+act.ID.String(), act.DryRun, a.sql["requeue"], act.Sink, [16]byte(act.ID), acceptReorder, act.Actor)
}

// Discard removes a dead or parked message for good, by the SQL function of that name; the audit keeps who and why.
func (a *Admin) Discard(ctx context.Context, act store.Act) error {
	return a.act(ctx, "discard message "+act.ID.String(), act.DryRun, a.sql["discard"], act.Sink, [16]byte(act.ID), act.Reason, act.Actor)
}

var errDryRun = errors.New("dry run")

// act calls a function in a transaction of its own; a dry run finds out all that it would be refused for, and undoes it.
func (a *Admin) act(ctx context.Context, op string, dryRun bool, sql string, args ...any) error {
	return a.acts(ctx, op, dryRun, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return actError(op, err)
	})
}

// acts runs f in a transaction of its own, which a dry run undoes.
func (a *Admin) acts(ctx context.Context, op string, dryRun bool, f func(pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		if dryRun {
			return errDryRun
		}
		return nil
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return adminError(op, err)
}

// What the functions refuse with, by SQLSTATE.
var actErrors = map[string]struct {
	code outbox.Code
	hint string
}{
	"ON001": {store.ErrReorderRefused.Code, "accept the reorder (--accept-reorder) to publish it after them"},
	"ON002": {store.ErrNotFound.Code, ""},
	"ON003": {store.ErrStateConflict.Code, "look at its state first: it may have changed meanwhile"},
	"ON004": {store.ErrReasonRequired.Code, "say why: the audit keeps it"},
	"ON007": {store.ErrPauseInvalid.Code, ""},
	"ON008": {store.ErrStateConflict.Code, "pause a topic, a pattern of topics, or the sink"},
	"ON006": {store.ErrStateConflict.Code, "stop the relays that serve it, or take the sink out of their configuration"},
}

// actError turns what a function raised into our own error. The text of the database ends with the code, for psql.
func actError(op string, err error) error {
	pg := (*pgconn.PgError)(nil)
	if !errors.As(err, &pg) {
		return err
	}
	known, ok := actErrors[pg.Code]
	if !ok {
		return err
	}
	return &outbox.Error{Code: known.code, Op: op, Detail: strings.TrimSuffix(pg.Message, " ("+string(known.code)+")"), Hint: known.hint}
}
