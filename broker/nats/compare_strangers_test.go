package nats

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// stranger publishes to the key's subject past Onward.
func (b compareBench) stranger(headers ...string) {
	b.tb.Helper()
	m := natsgo.NewMsg(b.subject())
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if _, err := b.js.PublishMsg(b.context(), m); err != nil {
		b.tb.Fatal(err)
	}
}

// Messages of others on the subject, with and without headers like ours, hide nothing.
func TestStrangersOnTheSubjectHideNothing(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(8)
	p := b.open()
	b.stranger()
	b.send(p, taken, all[0])
	b.stranger()
	b.stranger("onward-id", outbox.NewID().String(), "onward-seq", "1")
	b.send(p, taken, all[1:3]...)
	b.send(p, taken, all[4]) // all[3] is late
	for range 5 {
		b.stranger("a", "b")
	}
	b.forgotten()
	b.send(b.open(), taken, all[5])
	b.stranger()
	b.forgotten()
	p = b.open()
	b.send(p, found, all[:3]...)
	b.send(p, taken, all[3])
	b.send(p, found, all[4:6]...)
	b.send(p, taken, all[6:]...)
	arrived, err := b.read(b.context(), 8)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, m := range arrived {
		count[m.Value("onward-id")]++
	}
	for i, m := range all {
		if n := count[m.ID.String()]; n != 1 {
			t.Errorf("message %d is stored %d times", i, n)
		}
	}
}

// Many messages of others are passed by in several tries.
func TestManyStrangersArePassedByInSeveralTries(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(2)
	b.send(b.open(), taken, all[0])
	for range 2*maxStrangers + 10 {
		if _, err := b.js.PublishAsync(b.subject(), nil); err != nil {
			t.Fatal(err)
		}
	}
	<-b.js.PublishAsyncComplete()
	p := b.open()
	b.send(p, overtaken, all[0])
	b.send(p, overtaken, all[1])
	b.send(p, taken, all[1])
	b.wantStored(all...)
}

// A relay without compare mode published to the subject a message that is not settled.
func TestACopyPublishedWithoutComparingIsFound(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(4)
	b.send(b.open(), taken, all[0])
	plain := all[3]
	record := *plain.Record
	record.Topic = b.subject()
	b.send(b.publisher(Config{}), taken, broker.Envelope{Record: &record, Epoch: 1, Lineage: "1"})
	b.forgotten()
	b.send(b.open(), taken, all[1:3]...) // they come late
	b.forgotten()
	b.send(b.open(), found, all[3])
	b.wantStored(all[0], all[3], all[1], all[2])
}
