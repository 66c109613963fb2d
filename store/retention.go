package store

import (
	"context"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// Retainer is a Store that removes what nobody needs any more. Safe for concurrent use; the relays of a process may share one.
//
// What it removes of the log was passed by the durable cursor of every registered sink, and there is at least one; and it was
// written at least Retention.Published ago. By what a database remembers of when its numbers were given, that is: created_at is
// the producer's to choose. A message that is parked or dead has a copy of its own, which stays.
type Retainer interface {
	// Retain does a bounded part of the work, a few thousand rows, and says whether there is more at once. It does nothing
	// where another relay looks after it, or while a sink is being registered. Its errors are the database's own, and nothing
	// was done: the same call may be repeated.
	Retain(ctx context.Context, r Retention) (Retained, error)
}

// Retention says what may be removed.
type Retention struct {
	// Relay is who asks. The oldest of the live relays does the work, so that its memory of where it stands is good; zero: it
	// is done whoever lives.
	Relay outbox.ID
	// Published is how long messages stay in the log after they were written; 0: as long as a sink needs them.
	Published time.Duration
	// Dead is how long dead letters stay after they died; 0: for ever. Removing one is a discard: audited, and its key goes on.
	Dead time.Duration
}

// Retained is what a call did.
type Retained struct {
	Messages int  // removed from the log
	Dead     int  // dead letters discarded for their age
	More     bool // call again: this round is not over
}
