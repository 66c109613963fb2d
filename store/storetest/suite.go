package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

const sinkName = "orders"

// suite is one spec on one outbox.
type suite struct {
	*testing.T
	Harness
	ctx        context.Context
	partitions int
	relays     int
}

func (s *suite) complete() {
	s.Helper()
	if s.Open == nil || s.Begin == nil || s.Admin == nil || s.Tracker == nil {
		s.Fatal("storetest: the harness needs Open, Begin, Admin and Tracker")
	}
	if s.ShortLease == 0 {
		s.ShortLease = 400 * time.Millisecond
	}
	if s.RetainRows == 0 {
		s.RetainRows = 5000
	}
	s.ctx = s.Context()
	info, err := s.open().Info(s.ctx)
	s.ok(err, "info")
	s.partitions = info.Partitions
	if s.Patience == 0 {
		s.Patience = 30 * time.Second
		if s.many() {
			s.Patience *= 10
		}
	}
}

func (s *suite) ok(err error, what string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// wantError wants one of these errors.
func (s *suite) wantError(what string, err error, wants ...*outbox.Error) {
	s.Helper()
	var codes []outbox.Code
	for _, want := range wants {
		codes = append(codes, want.Code)
	}
	if !slices.Contains(codes, outbox.CodeOf(err)) {
		s.Errorf("%s: got error %v, want %v", what, err, codes)
	}
}

// want compares what two values look like.
func (s *suite) want(what string, got, want any) {
	s.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		s.Errorf("%s: got %s, want %s", what, g, w)
	}
}

// lacks says that a harness has no means for a spec.
func (s *suite) lacks(what string) { s.Logf("not tested: %s", what) }

// until asks again and again until a condition holds.
func (s *suite) until(what string, holds func() bool) {
	s.Helper()
	deadline := time.Now().Add(s.Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			s.Fatalf("%s: not within %s", what, s.Patience)
		}
		if s.Advance != nil {
			s.Advance(20 * time.Millisecond)
			continue
		}
		<-tick.C
	}
}

func (s *suite) open() store.Store {
	s.Helper()
	st := s.Open(s.T)
	s.Cleanup(func() {
		if err := st.Close(); err != nil {
			s.Errorf("close store: %v", err)
		}
	})
	return st
}

// message makes one whose payload is its name.
func (s *suite) message(name, key string) outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: key, Type: "Tested", ContentType: "text/plain", Payload: []byte(name)}
}

// begin opens a transaction that is rolled back with the test if nobody ended it.
func (s *suite) begin() Tx {
	s.Helper()
	tx := s.Begin(s.T)
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// write writes messages in an open transaction.
func (s *suite) write(tx Tx, ms ...outbox.Message) []outbox.Receipt {
	s.Helper()
	receipts, err := tx.WriteAll(s.ctx, ms)
	s.ok(err, "write")
	if len(receipts) != len(ms) {
		s.Fatalf("%d messages have %d receipts", len(ms), len(receipts))
	}
	return receipts
}

func (s *suite) commit(tx Tx) {
	s.Helper()
	s.ok(tx.Commit(s.ctx), "commit")
}

// send writes messages in a transaction of their own.
func (s *suite) send(ms ...outbox.Message) []outbox.Receipt {
	s.Helper()
	tx := s.begin()
	receipts := s.write(tx, ms...)
	s.commit(tx)
	return receipts
}

// sendNamed writes one message with each of these names, all of one key.
func (s *suite) sendNamed(key string, names ...string) []outbox.Receipt {
	s.Helper()
	var ms []outbox.Message
	for _, name := range names {
		ms = append(ms, s.message(name, key))
	}
	return s.send(ms...)
}

// keys returns keys that lie in different partitions, as far as there are so many.
func (s *suite) keys(n int) []string {
	s.Helper()
	if n > s.partitions {
		s.Fatalf("%d keys in %d partitions", n, s.partitions)
	}
	var keys []string
	taken := map[int]bool{}
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("key-%d", i)
		if p := s.partitionOf(key); !taken[p] {
			taken[p] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// many says that there are so many partitions that what a test does with all of them takes long.
func (s *suite) many() bool { return s.partitions > 1000 }

// page is a small page, so that a test needs several. A read asks few partitions where its page is small: of very many a larger one is
// small enough.
func (s *suite) page(rows int) int {
	if s.many() {
		return max(32*rows, s.partitions/8)
	}
	return rows
}

// keysTogether returns keys that lie in one partition.
func (s *suite) keysTogether(n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("key-%d", i)
		if s.partitionOf(key) == s.partitionOf("key-0") {
			keys = append(keys, key)
		}
	}
	return keys
}

// partitionOf is the hash of docs/names.md.
func (s *suite) partitionOf(key string) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint32(sum[:4]) & uint32(s.partitions-1)) //nolint:gosec // a power of two
}

// now is the database's clock.
func (s *suite) now() time.Time {
	s.Helper()
	status, err := s.Admin.Status(s.ctx)
	s.ok(err, "status")
	return status.Now
}

// sink is the status of the suite's sink.
func (s *suite) sink() store.SinkStatus {
	s.Helper()
	status, err := s.Admin.Status(s.ctx)
	s.ok(err, "status")
	for _, k := range status.Sinks {
		if k.Name == sinkName {
			return k
		}
	}
	s.Fatalf("status has no sink %s", sinkName)
	return store.SinkStatus{}
}

// wantTracked wants a receipt's message in this state, for the Tracker.
func (s *suite) wantTracked(what string, r outbox.Receipt, want store.State) {
	s.Helper()
	got, err := s.Tracker.State(s.ctx, sinkName, r)
	s.ok(err, "state of "+what)
	if got != want {
		s.Errorf("tracker has %s %s, want %s", what, got, want)
	}
}

// wantState wants a receipt's message in one of these states, for Admin and Tracker alike.
func (s *suite) wantState(what string, r outbox.Receipt, want store.State) {
	s.Helper()
	s.wantTracked(what, r, want)
	m, err := s.Admin.Message(s.ctx, r.ID)
	s.ok(err, "show "+what)
	if i := slices.IndexFunc(m.States, func(k store.SinkState) bool { return k.Sink == sinkName }); i < 0 || m.States[i].State != want {
		s.Errorf("admin has %s %v, want %s", what, m.States, want)
	}
}
