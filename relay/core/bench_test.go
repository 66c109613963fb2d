package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// BenchmarkMachine is the cost of one message in the core alone: read, published at once, settled at once.
func BenchmarkMachine(b *testing.B) {
	m := New(Rules{Rand: rand.New(rand.NewPCG(1, 2)), Messages: 10_000})
	page := store.Page{No: 1}
	lease := store.Lease{}
	for p := range 64 {
		lease.Owned = append(lease.Owned, store.Owned{Partition: p, Epoch: 1})
		part := store.Part{Owned: lease.Owned[p]}
		for i := range 32 {
			r := store.Record{}
			r.Key, r.Topic, r.Seq = fmt.Sprintf("key-%d", (p*32+i)%1000), "orders", int64(p*32+i)
			r.ID = outbox.NewID()
			part.Records = append(part.Records, r)
		}
		page.Parts = append(page.Parts, part)
	}
	todo := m.Step(0, Leased{Lease: lease, Until: time.Hour}, Probed{})
	m.breaker.state = breakerClosed
	b.ReportAllocs()
	for done := 0; done < b.N; {
		var events []Event
		for _, e := range todo {
			switch e := e.(type) {
			case Read:
				page.No++
				done += 2048
				events = append(events, ReadDone{Page: page})
			case Publish:
				as := make([]Answer, len(e.Batch))
				for i := range e.Batch {
					as[i] = Answer{Ticket: e.Ticket, Index: i, Result: broker.Result{Outcome: broker.Accepted}}
				}
				events = append(events, Published{Answers: as})
			case Settle:
				events = append(events, Settled{})
			}
		}
		todo = m.Step(time.Duration(done), events...)
	}
}
