package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onwardhq/onward/store"
)

var together = []spec{
	{"ASessionServesSeveralGoroutines", severalGoroutines},
	{"CancelledCallsLoseNothing", cancelledCalls},
	{"AResetSessionGivesEverythingAgain", resetSession},
	{"ConcurrentJoinsGiveEachPartitionOneOwner", concurrentJoins},
}

// severalGoroutines uses a session as the relay does: one goroutine renews, one reads, one settles, one asks for heads,
// while others write.
func severalGoroutines(s *suite) {
	const writers, each = 4, 25
	r := s.alone()
	ctx, cancel := context.WithTimeout(s.ctx, s.Patience)
	defer cancel()
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil && ctx.Err() == nil {
					s.Error(err)
					cancel()
				}
			}
		})
	}
	l := newLedger()
	var mu sync.Mutex // of the ledger
	for w := range writers {
		n := 0
		begin := s.Begin
		run(func() error {
			if n++; n > each {
				<-ctx.Done()
				return nil
			}
			name, key := fmt.Sprintf("%d.%d", w, n), fmt.Sprint("key-", n%3)
			mu.Lock()
			l.write(w*1000+n, key, name)
			mu.Unlock()
			tx := begin(s.T)
			if _, err := tx.Write(ctx, s.message(name, key)); err != nil {
				return errors.Join(err, tx.Rollback(s.ctx))
			}
			mu.Lock() // the commit and its entry are one step
			defer mu.Unlock()
			if err := tx.Commit(ctx); err != nil {
				return err
			}
			l.commit(name)
			return nil
		})
	}
	pages := make(chan store.Page, 100)
	room := r.room()
	run(func() error {
		page, err := r.session.Read(ctx, room)
		if err == nil && len(page.Parts) > 0 {
			pages <- page
		}
		return err
	})
	run(func() error { _, err := r.session.Renew(ctx, true); return err })
	run(func() error { _, err := r.session.Heads(ctx, room.Partitions, 10); return err })
	run(func() error {
		select {
		case page := <-pages:
			var st store.Settlement
			for _, part := range page.Parts {
				st.Done = append(st.Done, store.Done{Partition: part.Partition, Read: page.No, N: len(part.Records)})
				for _, rec := range part.Records {
					mu.Lock()
					l.handOver(string(rec.Payload))
					mu.Unlock()
				}
			}
			_, err := r.session.Settle(ctx, st)
			mu.Lock()
			defer mu.Unlock()
			if len(l.copies) == writers*each {
				cancel()
			}
			return err
		case <-ctx.Done():
			return nil
		}
	})
	wg.Wait()
	for _, fault := range l.faults(nil) {
		s.Error(fault)
	}
	s.want("messages", len(l.copies), writers*each)
}

// resetSession: once the caller has dropped what it held, nothing works but the renewal, which goes on from what the database has:
// what was handed over and not settled comes again, and partitions are kept.
func resetSession(s *suite) {
	r := s.alone()
	s.sendNamed("k", "a", "b")
	s.want("first", names(r.drain()), []string{"a", "b"})
	held := r.lease.Owned
	r.session.Reset()
	for what, err := range r.everyMethod("renew", "close") {
		s.wantError(what, err, store.ErrReload)
	}
	s.want("partitions", len(r.renew().Owned), len(held))
	s.want("again", names(r.drain()), []string{"a", "b"})
	r.settleAll()
	r.session.Reset()
	r.renew()
	s.want("once they are settled", names(r.drain()), []string(nil))
}

// cancelledCalls calls every method with a context that has ended, or ends meanwhile: what it did may be unknown, then the
// session says so and is loaded again.
func cancelledCalls(s *suite) {
	r := s.alone()
	receipts := s.sendNamed("k", "a", "b", "c")
	r.drain()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	_, err := r.session.Settle(ctx, store.Settlement{Done: upTo(r.untold[0])})
	s.wantFailed("settle", err)
	_, err = r.session.Renew(ctx, true)
	s.wantFailed("renew", err)
	_, err = r.session.Read(ctx, r.room())
	s.wantFailed("read", err)
	_, err = r.session.Heads(ctx, r.held(), 10)
	s.wantFailed("heads", err)
	for n := range 40 {
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(n)*50*time.Microsecond)
		_, _ = r.session.Renew(ctx, true)
		_, _ = r.session.Read(ctx, r.room())
		_, _ = r.session.Settle(ctx, store.Settlement{})
		cancel()
	}
	s.until("the session can be used again", func() bool {
		r.session.Reset()
		lease, err := r.session.Renew(s.ctx, true)
		r.lease = lease
		return err == nil && len(lease.Owned) == s.partitions
	})
	next := r.session
	s.ok(next.Close(s.ctx), "close")
	heir := s.alone()
	var got []string
	for _, t := range heir.drain() {
		if t.name() != "a" {
			got = append(got, t.name())
		}
	}
	s.want("what was not settled", got, []string{"b", "c"})
	heir.settleAll()
	for _, receipt := range receipts {
		s.wantState("a message", receipt, store.StatePublished)
	}
}

func (s *suite) wantFailed(what string, err error) {
	s.Helper()
	if err == nil {
		s.Errorf("%s with a cancelled context says nothing", what)
	}
	if errors.Is(err, store.ErrFenced) {
		s.Errorf("%s with a cancelled context says %v: nobody took over", what, err)
	}
}

func concurrentJoins(s *suite) {
	const n = 6
	relays := make([]*relay, n)
	st := s.open()
	var wg sync.WaitGroup
	for i := range n {
		as := s.long()
		wg.Go(func() {
			session, err := st.Join(s.ctx, as, store.Sink{Name: sinkName})
			if err != nil {
				s.Errorf("join: %v", err)
				return
			}
			relays[i] = &relay{s: s, store: st, session: session, as: as}
			for range 3 {
				if lease, err := session.Renew(s.ctx, true); err == nil {
					relays[i].lease = lease
				}
			}
		})
	}
	wg.Wait()
	if s.Failed() {
		return
	}
	for _, r := range relays {
		s.Cleanup(func() { _ = r.session.Close(context.Background()) })
		r.renew()
	}
	s.owners(relays...)
	s.even(relays...)
	s.want("partitions with an owner", len(s.owners(relays...)), s.partitions)
}
