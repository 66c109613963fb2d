package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
)

// Workload writes messages and the ledger in the same transactions, as plain SQL, so that the harness trusts nothing of
// what it tests. Each key belongs to one writer, which ends a transaction before it begins the next: that is what makes
// the order of a key known. Transactions of different keys overlap as they like.
type Workload struct {
	Pool      *pgxpool.Pool
	Schema    string // of the outbox
	Prefix    string // of its tables
	Topic     string
	Keys      int
	Writers   int
	Messages  int           // to commit in all; 0: until the context ends
	Payload   int           // bytes
	Rollbacks float64       // share of transactions that are rolled back
	Pause     time.Duration // between the transactions of a writer
	Hold      time.Duration // most time that a transaction stays open after its inserts, at random
	Seed      uint64

	left atomic.Int64
}

// CreateLedger makes the ledger's table.
func (w *Workload) CreateLedger(ctx context.Context) error {
	_, err := w.Pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %q.ledger (id uuid PRIMARY KEY, key text NOT NULL, n int NOT NULL, UNIQUE (key, n))`, w.Schema))
	return err
}

// Run writes until all messages are committed or ctx ends. Errors of the database are survived: a writer asks the ledger
// how far it got, and goes on.
func (w *Workload) Run(ctx context.Context) error {
	w.left.Store(int64(w.Messages))
	var wg sync.WaitGroup
	errs := make([]error, w.Writers)
	for i := range w.Writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = w.write(ctx, i)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *Workload) write(ctx context.Context, writer int) error {
	rng := rand.New(rand.NewPCG(w.Seed, uint64(writer)))
	next, err := w.highest(ctx)
	if err != nil {
		return err
	}
	payload := make([]byte, w.Payload)
	for ctx.Err() == nil {
		n := 1 + rng.IntN(5)
		if w.Messages > 0 {
			if left := w.left.Add(-int64(n)); left < 0 {
				n += int(left)
			}
			if n <= 0 {
				return nil
			}
		}
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprintf("key-%d", writer+w.Writers*rng.IntN(max(1, w.Keys/w.Writers)))
		}
		w.transact(ctx, rng, next, keys, payload)
		if w.Pause > 0 {
			pause(ctx, w.Pause)
		}
	}
	return nil
}

// highest is the highest number of each key: a second run goes on from there, also where a lost tail has left gaps below.
func (w *Workload) highest(ctx context.Context) (map[string]int, error) {
	entries, err := w.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	next := map[string]int{}
	for _, e := range entries {
		next[e.Key] = max(next[e.Key], e.N)
	}
	return next, nil
}

// transact writes one transaction with a message for each of the keys, again until it is committed.
func (w *Workload) transact(ctx context.Context, rng *rand.Rand, next map[string]int, keys []string, payload []byte) {
	whole := context.WithoutCancel(ctx) // a transaction that has begun is ended, and its end is known
	for ctx.Err() == nil {
		rollback := rng.Float64() < w.Rollbacks
		numbers := map[string]int{}
		err := w.once(whole, rng, next, numbers, keys, payload, rollback)
		switch {
		case err == nil && rollback:
		case err == nil:
			for k, n := range numbers {
				next[k] = n
			}
			return
		case w.recover(whole, next, numbers):
			return // the commit had happened, its answer was lost
		}
	}
}

var errRollback = errors.New("rolled back on purpose")

func (w *Workload) once(ctx context.Context, rng *rand.Rand, next, numbers map[string]int, keys []string, payload []byte, rollback bool) error {
	err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		for _, key := range keys {
			n := max(next[key], numbers[key]) + 1
			numbers[key] = n
			id := outbox.NewID().String()
			b.Queue(fmt.Sprintf(`INSERT INTO %q.ledger (id, key, n) VALUES ($1, $2, $3)`, w.Schema), id, key, n)
			b.Queue(fmt.Sprintf(`INSERT INTO %q.%smessages (id, topic, type, partition_key, payload) VALUES ($1, $2, 'Made', $3, $4)`, w.Schema, w.Prefix),
				id, w.Topic, key, payload)
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if w.Hold > 0 {
			pause(ctx, time.Duration(rng.Int64N(int64(w.Hold))))
		}
		if rollback {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

// recover asks the ledger whether a transaction whose commit was not answered is there.
func (w *Workload) recover(ctx context.Context, next, numbers map[string]int) (committed bool) {
	for ctx.Err() == nil {
		for key, n := range numbers {
			var high int
			err := w.Pool.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(max(n), 0) FROM %q.ledger WHERE key = $1`, w.Schema), key).Scan(&high)
			if err != nil {
				break
			}
			committed = high >= n
			next[key] = max(next[key], high) // what was lost with a tail has no number; and the commit may still come, with n
			delete(numbers, key)
		}
		if len(numbers) == 0 {
			return committed
		}
		pause(ctx, 50*time.Millisecond)
	}
	return false
}

// Ledger reads what was committed.
func (w *Workload) Ledger(ctx context.Context) ([]Entry, error) {
	rows, err := w.Pool.Query(ctx, fmt.Sprintf(`SELECT id::text, key, n FROM %q.ledger`, w.Schema))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (e Entry, err error) {
		return e, r.Scan(&e.ID, &e.Key, &e.N)
	})
}

func pause(ctx context.Context, d time.Duration) { _ = Pause(ctx, d) }

// Pause waits, or returns why ctx has ended.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
