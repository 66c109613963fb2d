package harness

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
)

// Flight counts the messages that a relay has in flight, in a file that is mapped into memory: it can be read when the relay
// has been killed. Nil counts nothing.
type Flight struct {
	page   []byte
	counts *flightCounts
}

type flightCounts struct {
	ready, handed, answered, published, settled atomic.Int64
}

// OpenFlight opens the file, or makes it; without a name it returns nil. Relay and reader each open it.
func OpenFlight(file string) (*Flight, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // nil is a Flight that counts nothing
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED) //nolint:gosec // a file's number
	if err != nil {
		return nil, err
	}
	return &Flight{page: page, counts: (*flightCounts)(unsafe.Pointer(&page[0]))}, nil
}

// Close gives the memory back.
func (f *Flight) Close() error { return syscall.Munmap(f.page) }

// Ready reports whether the relay takes SIGTERM as a request.
func (f *Flight) Ready() bool { return f.counts.ready.Load() > 0 }

// Published is how many messages the broker has answered for.
func (f *Flight) Published() int { return int(f.counts.published.Load()) }

// Unanswered is how many messages the publisher has and the broker has not answered for.
func (f *Flight) Unanswered() int { return int(f.counts.handed.Load() - f.counts.answered.Load()) }

// Unsettled is how many messages were handed to the publisher and are not known to be settled: what may come again.
func (f *Flight) Unsettled() int { return max(0, int(f.counts.handed.Load()-f.counts.settled.Load())) }

func (f *Flight) ready() {
	if f != nil {
		f.counts.ready.Store(1)
	}
}

func (f *Flight) sent(n int) {
	if f != nil {
		f.counts.handed.Add(int64(n))
	}
}

func (f *Flight) answered(r broker.Result) {
	if f == nil {
		return
	}
	f.counts.answered.Add(1)
	switch r.Outcome {
	case broker.Accepted, broker.Duplicate:
		f.counts.published.Add(1)
	default:
		f.counts.settled.Add(1) // it will be handed over once more, and counted again
	}
}

// watched is a store whose sessions count what they settle.
type watched struct {
	*postgres.Store
	flight *Flight
}

// Join is that of the store.
func (w watched) Join(ctx context.Context, r store.Relay, s store.Sink) (store.Session, error) {
	joined, err := w.Store.Join(ctx, r, s)
	session, ok := joined.(*postgres.Session)
	if err != nil || !ok || w.flight == nil {
		return joined, err
	}
	return watchedSession{Session: session, flight: w.flight}, nil
}

type watchedSession struct {
	*postgres.Session
	flight *Flight
}

// Settle is that of the session.
func (w watchedSession) Settle(ctx context.Context, s store.Settlement) (store.Settled, error) {
	settled, err := w.Session.Settle(ctx, s)
	if err == nil {
		w.flight.counts.settled.Add(int64(s.Published))
	}
	w.forgets(err)
	return settled, err
}

// Read is that of the session.
func (w watchedSession) Read(ctx context.Context, room store.Room) (store.Page, error) {
	page, err := w.Session.Read(ctx, room)
	w.forgets(err)
	return page, err
}

// Renew is that of the session.
func (w watchedSession) Renew(ctx context.Context, take bool) (store.Lease, error) {
	lease, err := w.Session.Renew(ctx, take)
	w.forgets(err)
	return lease, err
}

// Reset is that of the session.
func (w watchedSession) Reset() {
	w.Session.Reset()
	w.forgets(store.ErrReload)
}

// forgets notes the end of what a session remembers: it is read again, and handed over and counted once more.
func (w watchedSession) forgets(err error) {
	if errors.Is(err, store.ErrReload) || errors.Is(err, store.ErrFenced) {
		w.flight.counts.settled.Store(w.flight.counts.handed.Load())
	}
}
