package memstore

import (
	"context"

	"github.com/onwardhq/onward/outbox"
)

// Op names a call that may fail.
type Op string

// The calls.
const (
	OpInfo      Op = "info"
	OpJoin      Op = "join"
	OpRenew     Op = "renew"
	OpRead      Op = "read"
	OpHeads     Op = "heads"
	OpFollowers Op = "followers"
	OpSettle    Op = "settle"
	OpGiveBack  Op = "give back"
	OpClose     Op = "close"
	OpRetain    Op = "retain"
	OpCommit    Op = "commit" // of a producer's transaction
)

// Call is one call of a process.
type Call struct {
	Op    Op
	Relay outbox.ID // zero with OpInfo and OpCommit
	Sink  string
}

// Fault is what goes wrong with a call. The zero Fault is none.
type Fault struct {
	// Err is returned, and nothing was done.
	Err error
	// Lost: the call was done and its answer was lost. A session returns store.ErrReload and is void; a transaction's
	// Commit returns Err, or an error that says so.
	Lost bool
	// Wait: the call is not done before this channel is closed; if its context ends first it is not done at all. A Commit
	// does not wait.
	Wait <-chan struct{}
}

// SetFault sets what decides which calls fail; nil: none does. It is called under the database's lock and must not call
// the database.
func (db *DB) SetFault(f func(Call) Fault) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.fault = f
}

// faulty asks for the fault of a call. The lock is held.
func (db *DB) faulty(c Call) Fault {
	if db.fault == nil {
		return Fault{}
	}
	return db.fault(c)
}

// begin takes the lock for a call and asks for its fault: an error means that the lock is not held.
func (db *DB) begin(ctx context.Context, c Call) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return Fault{}, err
	}
	db.mu.Lock()
	fault := db.faulty(c)
	if fault.Wait != nil {
		db.mu.Unlock()
		select {
		case <-fault.Wait:
		case <-ctx.Done():
			return Fault{}, ctx.Err()
		}
		db.mu.Lock()
	}
	if fault.Err != nil && !fault.Lost {
		db.mu.Unlock()
		return Fault{}, fault.Err
	}
	return fault, nil
}
