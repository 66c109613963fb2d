// Package storetest is the conformance suite of store.Store, store.Admin, store.Tracker and of a database's writers:
// every sentence of those contracts as a test. A store runs it on its real database:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { ... })
//	}
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Harness is one empty outbox, made for one test: a schema, a file, a database that nobody else writes to. Fields
// without the word optional are needed.
type Harness struct {
	// Open opens the store as a process of its own would: no two share a session's memory. The suite closes it.
	Open func(t *testing.T) store.Store
	// Begin opens a transaction with a writer. Up to four are open at once.
	Begin func(t *testing.T) Tx
	// BeginIgnoring is Begin with a writer that ignores duplicates. Optional.
	BeginIgnoring func(t *testing.T) Tx
	Admin         store.Admin
	Tracker       store.Tracker

	// Position returns the broker's position that was kept of a message, or "". Optional.
	Position func(t *testing.T, sink string, id outbox.ID) string
	// Audit returns what people did, oldest first. Optional.
	Audit func(t *testing.T) []AuditLine

	// Pauses makes n pauses, of the keys key-0, key-1, ..., as if somebody had made them. Optional: without it they are made one by one.
	Pauses func(t *testing.T, sink string, n int)

	// OneWriter: a transaction that has written holds up all other writers, relays included, until it ends, so that numbers
	// become visible in their order and nothing is late. The suite then asks what such a database promises instead.
	OneWriter bool

	// Advance moves the database's clock, and that of the stores. Optional: without it time passes by itself.
	Advance func(d time.Duration)
	// ShortLease is the lease of relays that are to be taken over; 0: 400ms.
	ShortLease time.Duration
	// RetainRows is how many messages one call of store.Retainer removes at most; 0: 5000.
	RetainRows int
	// Patience is how long the suite waits for what must come; 0: 30s, with over 1,000 partitions 5m.
	Patience time.Duration
}

// Tx is a transaction and a writer that writes in it.
type Tx interface {
	Write(ctx context.Context, m outbox.Message) (outbox.Receipt, error)
	WriteAll(ctx context.Context, ms []outbox.Message) ([]outbox.Receipt, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// AuditLine is one act of a person, as it was kept.
type AuditLine struct {
	Actor, Action, Sink, Reason string
	ID                          outbox.ID
}

// Transaction makes a Tx of a writer and of what ends its transaction.
func Transaction[T any](w outbox.Writer[T], tx T, commit, rollback func(ctx context.Context) error) Tx {
	return transaction[T]{w, tx, commit, rollback}
}

type transaction[T any] struct {
	writer           outbox.Writer[T]
	tx               T
	commit, rollback func(ctx context.Context) error
}

func (t transaction[T]) Write(ctx context.Context, m outbox.Message) (outbox.Receipt, error) {
	return t.writer.Write(ctx, t.tx, m)
}

func (t transaction[T]) WriteAll(ctx context.Context, ms []outbox.Message) ([]outbox.Receipt, error) {
	return t.writer.WriteAll(ctx, t.tx, ms)
}

func (t transaction[T]) Commit(ctx context.Context) error   { return t.commit(ctx) }
func (t transaction[T]) Rollback(ctx context.Context) error { return t.rollback(ctx) }

// Run runs the suite; each test asks for an outbox of its own and runs in parallel with the others.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for _, group := range [][]spec{writing, joining, sinks, reading, waking, late, serial, settling, parking, outcomes, losing, passes, acts, pauses, keys, years, lists, progress, retention, together, random} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := &suite{T: t, Harness: open(t)}
				s.complete()
				c.run(s)
			})
		}
	}
}

// spec is one sentence of the contract. A spec that its harness has no means for says so in the log and passes.
type spec struct {
	name string
	run  func(*suite)
}

// severalWriters is a spec of databases where transactions write at once, and a lower number may be committed later.
func severalWriters(run func(*suite)) func(*suite) {
	return func(s *suite) {
		if s.OneWriter {
			s.lacks("transactions that write at once: there is one writer")
			return
		}
		run(s)
	}
}

// oneWriter is a spec of databases where one transaction writes at a time.
func oneWriter(run func(*suite)) func(*suite) {
	return func(s *suite) {
		if !s.OneWriter {
			s.lacks("a writer that holds up the others: there are several")
			return
		}
		run(s)
	}
}
