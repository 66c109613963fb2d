package sqlite

import (
	"context"
	"database/sql"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// State answers where a receipt's message stands in a sink. Published means: the cursor has passed its number, and it is
// neither parked nor dead nor discarded; numbers become visible in their order, so no more is needed.
//
// A message that is not there is rolled-back where another one has its number, or where its number was never given to
// anybody and no transaction is open that may still bring it; pending while one is open; unknown where retention may have
// deleted it, or the sink does not take it.
func (a *Admin) State(ctx context.Context, sink string, r outbox.Receipt) (state store.State, err error) {
	const op = "state of a receipt"
	if sink == "" {
		return "", &outbox.Error{Code: store.ErrNotFound.Code, Op: op, Detail: "a sink is required"}
	}
	unborn := false
	err = a.use(ctx, op, func(c *call) error {
		look := func() error {
			if err := c.checkSink(sink); err != nil {
				return err
			}
			state, unborn, err = c.stateOf(sink, r)
			return err
		}
		if err := c.read(look); err != nil || !unborn {
			return err
		}
		c.wait = 0 // whoever has the write lock may be the one who writes it
		if err := c.write(look); !isBusy(err) {
			if err == nil && unborn {
				state = store.StateRolledBack
			}
			return err
		}
		state = store.StatePending
		return nil
	})
	return state, err
}

// statesOf is where the message of a receipt stands; none: the sink does not take it.
func (c *call) statesOf(r outbox.Receipt, sink string) ([]store.SinkState, error) {
	m := outbox.Record{Seq: r.Seq}
	m.ID = r.ID
	if _, err := c.row("topic", []any{r.ID.String()}, &m.Topic); err != nil {
		return nil, err
	}
	return c.states(&m, sink)
}

// stateOf reads it; unborn: no message has had the number or a later one.
func (c *call) stateOf(sink string, r outbox.Receipt) (state store.State, unborn bool, err error) {
	var seq sql.NullInt64
	var taken, discarded bool
	var newest int64
	if _, err := c.row("receipt", []any{r.ID.String(), r.Seq}, &seq, &taken, &newest); err != nil {
		return "", false, err
	}
	if seq.Valid && seq.Int64 == r.Seq {
		states, err := c.statesOf(r, sink)
		if err != nil || len(states) == 0 {
			return store.StateUnknown, false, err
		}
		return states[0].State, false, nil
	}
	if _, err := c.row("discarded", []any{sink, r.ID.String()}, &discarded); err != nil {
		return "", false, err
	}
	switch {
	case discarded:
		return store.StateDiscarded, false, nil
	case taken:
		return store.StateRolledBack, false, nil
	case r.Seq > newest:
		return store.StatePending, true, nil
	}
	return store.StateUnknown, false, nil
}
