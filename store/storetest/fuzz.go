package storetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// FuzzMessages is a fuzz target of a database and its writers: a message that outbox.Rules take is taken, and read back as it
// was written, every byte; one that they refuse is refused with their code, before the database sees it.
//
// open is called once: it gives a store, and what opens a transaction with a writer that has no rules of its own. It cleans up
// after itself.
func FuzzMessages(f *testing.F, open func(tb testing.TB) (store.Store, func(ctx context.Context) (Tx, error))) {
	f.Helper()
	for _, m := range []outbox.Message{
		{Topic: "orders", Type: "OrderPaid", Key: "7", ContentType: "application/json", Headers: map[string]string{"x": "1"}, Payload: []byte(`{"a": 1}`)},
		{Topic: `a\b`, Type: "ünï", Key: "e\u0301'\"", Headers: map[string]string{"X": "\t\\u0000 \u2028"}, CorrelationID: "{}", Payload: []byte("\x00\xff\\x\r\n")},
		{Topic: "t", Type: "t", Key: "\x00", ContentType: "a\r\nb", Headers: map[string]string{"Nats-Rollup": "all"}, CorrelationID: "\xff"},
		{Topic: strings.Repeat("t", outbox.MaxTopic+1), Headers: map[string]string{"": ""}, AvailableAt: time.Unix(1<<40, 0)},
		{Topic: " ", Type: "T", Key: " ", ContentType: " ", Headers: map[string]string{"~": ""}, AvailableAt: time.Unix(-1<<40, 1)},
	} {
		name := slices.Collect(maps.Keys(m.Headers))[0]
		f.Add(m.Topic, m.Type, m.Key, m.ContentType, name, m.Headers[name], m.CorrelationID, m.AvailableAt.Unix(), m.Payload)
	}
	st, begin := open(f)
	e := echo{store: st, begin: begin}
	e.join(f)
	f.Fuzz(func(t *testing.T, topic, kind, key, contentType, name, value, correlation string, available int64, payload []byte) {
		m := outbox.Message{
			ID: outbox.NewID(), Topic: topic, Type: kind, Key: key, ContentType: contentType, Payload: payload, Headers: map[string]string{name: value},
			CorrelationID: correlation, CausationID: value, AggregateType: kind, AggregateID: key, EventID: correlation,
		}
		if available != 0 {
			m.AvailableAt = time.Unix(available, available)
		}
		e.check(t, m)
	})
}

// echo writes messages and reads them back.
type echo struct {
	store   store.Store
	begin   func(ctx context.Context) (Tx, error)
	session store.Session
	room    store.Room
}

func (e *echo) join(tb testing.TB) {
	tb.Helper()
	id := outbox.NewID()
	relay := store.Relay{ID: id, Name: id.String(), Lease: time.Hour, Heartbeat: time.Minute}
	session, err := e.store.Join(tb.Context(), relay, store.Sink{Name: sinkName})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = session.Close(context.Background()) })
	lease, err := session.Renew(tb.Context(), true)
	if err != nil {
		tb.Fatal(err)
	}
	e.session, e.room = session, store.Room{Messages: 2048, Bytes: 16 << 20}
	for _, o := range lease.Owned {
		e.room.Partitions = append(e.room.Partitions, o.Partition)
	}
}

func (e *echo) check(t *testing.T, m outbox.Message) {
	t.Helper()
	tx, err := e.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	want, refusal := outbox.Rules{}.Prepare(t.Context(), m)
	receipt, err := tx.Write(t.Context(), m)
	if refusal != nil || err != nil {
		if outbox.CodeOf(err) != outbox.CodeOf(refusal) || err == nil {
			t.Errorf("%+v: the rules say %v, the writer %v", m, refusal, err)
		}
		return
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := e.read(t)
	g := got.Message
	if !bytes.Equal(g.Payload, want.Payload) || !maps.Equal(g.Headers, want.Headers) || !g.AvailableAt.Equal(want.AvailableAt) {
		t.Errorf("payload %q, headers %q, available at %s; want %q, %q, %s", g.Payload, g.Headers, g.AvailableAt, want.Payload, want.Headers, want.AvailableAt)
	}
	for _, x := range []*outbox.Message{&g, &want} {
		x.Payload, x.Headers, x.AvailableAt = nil, nil, time.Time{}
	}
	if g, w := fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("got %s\nwant %s", g, w)
	}
	if receipt.ID != m.ID || receipt.Seq != got.Seq || receipt.Partition != got.Partition {
		t.Errorf("receipt %s, message %d of partition %d", receipt, got.Seq, got.Partition)
	}
}

// read returns the one message that is there, and settles it.
func (e *echo) read(t *testing.T) store.Record {
	t.Helper()
	page, err := e.session.Read(t.Context(), e.room)
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Parts) != 1 || len(page.Parts[0].Records) != 1 {
		t.Fatalf("one message was written, and the page is %+v", page)
	}
	part := page.Parts[0]
	done := store.Settlement{Done: []store.Done{{Partition: part.Partition, Read: page.No, N: 1}}, Published: 1}
	if _, err := e.session.Settle(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	return part.Records[0]
}
