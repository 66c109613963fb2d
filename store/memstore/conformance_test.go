package memstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
	"github.com/onwardhq/onward/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]memstore.Config{
		"plain":          {},
		"one partition":  {Partitions: 1},
		"coarse cursors": {Coarse: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(*testing.T) storetest.Harness {
				clock := &clock{now: time.Unix(1_700_000_000, 0)}
				h := harness(memstore.New(memstore.Config{Partitions: c.Partitions, Coarse: c.Coarse, Now: clock.Now}))
				h.Advance = clock.advance
				return h
			})
		})
	}
	t.Run("real time", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(*testing.T) storetest.Harness { return harness(memstore.New(memstore.Config{})) })
	})
}

// clock is a clock that the suite moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func harness(db *memstore.DB) storetest.Harness {
	begin := func(c memstore.WriterConfig) func(*testing.T) storetest.Tx {
		w := memstore.NewWriter(c)
		return func(*testing.T) storetest.Tx {
			tx := db.Begin()
			return storetest.Transaction(w, tx,
				func(context.Context) error { return tx.Commit() }, func(context.Context) error { return tx.Rollback() })
		}
	}
	return storetest.Harness{
		Open:          func(*testing.T) store.Store { return db.Open(nil) },
		Begin:         begin(memstore.WriterConfig{}),
		BeginIgnoring: begin(memstore.WriterConfig{IgnoreDuplicates: true}),
		Admin:         db.Admin(),
		Tracker:       db.Admin(),
		RetainRows:    1000,
		Position:      func(_ *testing.T, sink string, id outbox.ID) string { return db.Position(sink, id) },
		Audit: func(*testing.T) (lines []storetest.AuditLine) {
			for _, a := range db.Audit() {
				lines = append(lines, storetest.AuditLine{Actor: a.Actor, Action: a.Action, Sink: a.Sink, Reason: a.Reason, ID: a.ID})
			}
			return lines
		},
	}
}
