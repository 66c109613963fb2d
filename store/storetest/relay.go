package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// relay drives a session as the core would, one step at a time.
type relay struct {
	s       *suite
	store   store.Store
	session store.Session
	as      store.Relay
	lease   store.Lease
	untold  []taken // handed over, without an outcome
}

// taken is a message that was handed over.
type taken struct {
	store.Record
	read  uint64
	index int // in its part
}

// name is what the test called the message.
func (t taken) name() string { return string(t.Payload) }

func names(ts []taken) (all []string) {
	for _, t := range ts {
		all = append(all, t.name())
	}
	return all
}

func parkedNames(ps []store.Parked) (all []string) {
	for _, p := range ps {
		all = append(all, string(p.Payload))
	}
	return all
}

// long is the registration of a relay that stays, and looks after others often.
func (s *suite) long() store.Relay {
	s.relays++
	return store.Relay{
		ID: outbox.NewID(), Name: fmt.Sprintf("relay-%d", s.relays), Host: "host", Version: "v0", PID: 4711,
		Lease: time.Minute, Heartbeat: 50 * time.Millisecond,
	}
}

// short is the registration of a relay that is to be taken over.
func (s *suite) short() store.Relay {
	r := s.long()
	r.Lease, r.Heartbeat = s.ShortLease, s.ShortLease/4
	if s.many() { // claiming them must not take as long as the lease
		r.Lease, r.Heartbeat = 10*r.Lease, 10*r.Heartbeat
	}
	return r
}

// join registers a relay that holds nothing yet, on a store of its own.
func (s *suite) join(as store.Relay) *relay {
	s.Helper()
	return s.joinOn(s.open(), as, sinkName)
}

func (s *suite) joinOn(st store.Store, as store.Relay, sink string) *relay {
	s.Helper()
	return s.joinAs(st, as, store.Sink{Name: sink})
}

func (s *suite) joinAs(st store.Store, as store.Relay, sink store.Sink) *relay {
	s.Helper()
	session, err := st.Join(s.ctx, as, sink)
	s.ok(err, "join")
	s.Cleanup(func() { _ = session.Close(context.Background()) })
	return &relay{s: s, store: st, session: session, as: as}
}

// alone registers a relay and waits until it holds every partition.
func (s *suite) alone() *relay {
	s.Helper()
	return s.join(s.long()).holdAll()
}

func (r *relay) holdAll() *relay {
	r.s.Helper()
	r.s.until("hold every partition", func() bool { return len(r.renew().Owned) == r.s.partitions })
	return r
}

func (r *relay) renew() store.Lease {
	r.s.Helper()
	lease, err := r.session.Renew(r.s.ctx, true)
	r.s.ok(err, "renew")
	r.lease = lease
	return lease
}

// held returns the partitions held, as the last renewal said.
func (r *relay) held() (ids []int) {
	for _, o := range r.lease.Owned {
		ids = append(ids, o.Partition)
	}
	return ids
}

func (r *relay) epoch(partition int) int64 {
	for _, o := range r.lease.Owned {
		if o.Partition == partition {
			return o.Epoch
		}
	}
	return 0
}

// room is room enough for what a test writes.
func (r *relay) room() store.Room {
	return store.Room{Partitions: r.held(), Messages: 2048, Bytes: 16 << 20}
}

// page reads once.
func (r *relay) page(room store.Room) (store.Page, []taken) {
	r.s.Helper()
	page, err := r.session.Read(r.s.ctx, room)
	r.s.ok(err, "read")
	var ts []taken
	for _, part := range page.Parts {
		if len(part.Records) == 0 {
			r.s.Errorf("read %d has a part %d without records", page.No, part.Partition)
		}
		for i, rec := range part.Records {
			if rec.Partition != part.Partition {
				r.s.Errorf("message %s of partition %d came with partition %d", rec.ID, rec.Partition, part.Partition)
			}
			ts = append(ts, taken{rec, page.No, i})
		}
	}
	r.untold = append(r.untold, ts...)
	return page, ts
}

// drain reads until there is no more at once.
func (r *relay) drain() []taken {
	r.s.Helper()
	return r.drainRoom(r.room())
}

func (r *relay) drainRoom(room store.Room) (all []taken) {
	r.s.Helper()
	for n := 0; ; n++ {
		page, ts := r.page(room)
		all = append(all, ts...)
		if !page.More {
			return all
		}
		if n > 10_000 {
			r.s.Fatal("read says More without end")
		}
	}
}

// upTo says that a message, and those before it in its part, have an outcome.
func upTo(ts ...taken) (done []store.Done) {
	for _, t := range ts {
		i := slices.IndexFunc(done, func(d store.Done) bool { return d.Partition == t.Partition && d.Read == t.read })
		if i < 0 {
			done = append(done, store.Done{Partition: t.Partition, Read: t.read})
			i = len(done) - 1
		}
		done[i].N = max(done[i].N, t.index+1)
	}
	return done
}

// settle settles what was taken, with these verdicts.
func (r *relay) settle(ts []taken, verdicts ...store.Verdict) store.Settled {
	r.s.Helper()
	settled, err := r.session.Settle(r.s.ctx, store.Settlement{Done: upTo(ts...), Verdicts: verdicts, Published: len(ts)})
	r.s.ok(err, "settle")
	r.untold = slices.DeleteFunc(r.untold, func(t taken) bool {
		return slices.ContainsFunc(ts, func(u taken) bool { return u.read == t.read && u.Partition == t.Partition && t.index <= u.index })
	})
	return settled
}

// settleAll settles everything that was handed over.
func (r *relay) settleAll() {
	r.s.Helper()
	if len(r.untold) > 0 {
		r.settle(r.untold)
	}
}

func (r *relay) heads() store.Heads {
	r.s.Helper()
	heads, err := r.session.Heads(r.s.ctx, r.held(), 1000)
	r.s.ok(err, "heads")
	return heads
}

func (r *relay) followers(key string, after store.Place) []store.Parked {
	r.s.Helper()
	found, err := r.session.Followers(r.s.ctx, r.key(key), after, store.Room{Messages: 1000, Bytes: 16 << 20})
	r.s.ok(err, "followers")
	return found
}

func (r *relay) key(key string) store.Key {
	return store.Key{Partition: r.s.partitionOf(key), Key: key}
}

func (r *relay) giveBack(partitions ...int) {
	r.s.Helper()
	r.s.ok(r.session.GiveBack(r.s.ctx, partitions), "give back")
	r.lease.Owned = slices.DeleteFunc(r.lease.Owned, func(o store.Owned) bool { return slices.Contains(partitions, o.Partition) })
}

func (r *relay) close() {
	r.s.Helper()
	r.s.ok(r.session.Close(r.s.ctx), "close")
}

// successor joins after a relay has left, or has fallen silent, and waits until it holds everything.
func (r *relay) successor() *relay {
	r.s.Helper()
	return r.s.join(r.s.long()).holdAll()
}

// fromLog is a verdict on a message of the log.
func fromLog(t taken, v store.Verdict) store.Verdict {
	v.Partition, v.Seq, v.ID, v.Key = t.Partition, t.Seq, t.ID, t.Key
	return v
}

// fromParked is a verdict on a parked message.
func fromParked(p store.Parked, v store.Verdict) store.Verdict {
	v.Partition, v.Seq, v.ID, v.Key, v.FromParked = p.Partition, p.Seq, p.ID, p.Key, true
	if v.Attempts == 0 {
		v.Attempts = p.Attempts
	}
	return v
}

// The verdicts that tests give most.

func retryIn(d time.Duration, attempts int) store.Verdict {
	return store.Verdict{
		To: store.Park, Reason: store.ReasonRetry, Due: d, Attempts: attempts, Code: "onward/rejected", Error: "no",
		Tried: &store.Attempt{No: attempts, Outcome: "retry", Code: "onward/rejected", Error: "no", Took: time.Millisecond},
	}
}

func behind() store.Verdict { return store.Verdict{To: store.Park, Reason: store.ReasonBehind} }

func dies(blocks bool, attempts int) store.Verdict {
	return store.Verdict{
		To: store.Dead, Blocks: blocks, Attempts: attempts, Code: "onward/attempts-exhausted", Error: "never",
		Tried: &store.Attempt{No: attempts, Outcome: "rejected", Code: "onward/rejected", Error: "never", Took: time.Millisecond},
	}
}

func out() store.Verdict { return store.Verdict{To: store.Out} }
