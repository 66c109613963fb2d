package postgres

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// State answers where a receipt's message stands in a sink, in one statement; store.ErrNotFound where there is no such
// sink. A transaction that is still open is pending, one that was rolled back StateRolledBack. A committed transaction
// without the message (it was written within a savepoint that was rolled back, or retention has removed it) is
// StateUnknown.
func (a *Admin) State(ctx context.Context, sink string, r outbox.Receipt) (state store.State, err error) {
	err = a.read(ctx, "find the state of a receipt", func(tx pgx.Tx) error {
		var (
			hasSink, inLog bool
			fate           string
		)
		err := tx.QueryRow(ctx, a.sql["receipt"], sink, [16]byte(r.ID), r.Partition, r.Seq, strconv.FormatUint(r.Tx, 10)).
			Scan(&hasSink, &inLog, &state, &fate)
		if err != nil {
			return err
		}
		if !hasSink {
			return a.checkSink(ctx, tx, sink)
		}
		state = stateOfReceipt(state, inLog, fate)
		return nil
	})
	if err != nil {
		return "", err
	}
	return state, nil
}

// stateOfReceipt weighs what the cursor says against whether the row is there.
func stateOfReceipt(state store.State, inLog bool, fate string) store.State {
	switch {
	case inLog && state == "": // the sink does not take it
		return store.StateUnknown
	case inLog, state == store.StateParked, state == store.StateDead, state == store.StateDiscarded:
		return state
	case fate == "aborted":
		return store.StateRolledBack
	case fate == "in progress":
		return store.StatePending
	default:
		return store.StateUnknown
	}
}
