package kafka

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// All of a record in each format, as a consumer gets it.
func TestWhatArrivesInEachFormat(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	formats := []broker.WireConfig{
		{},
		{Fields: []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis"}},
		{Format: broker.FormatBinary, Source: "/shop/orders"},
		{Format: broker.FormatStructured, Source: "/shop/orders"},
	}
	for _, c := range formats {
		c.Topic = b.topic
		e := message("orders.paid", "order-7")
		e.ID, _ = outbox.ParseID("01020304-0506-7008-890a-0b0c0d0e0f10")
		e.Type, e.ContentType, e.Payload = "OrderPaid", "application/json", []byte(`{"total":1250}`)
		e.CorrelationID, e.CausationID = "checkout-881", "payment-3"
		e.Scope, e.AggregateType, e.AggregateID, e.EventID = "eu", "order", "7", "event-9"
		e.Record.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "zone": "b"}
		e.Seq, e.Epoch, e.Lineage, e.Relay, e.Attempt = 4711, 9, "2", "shop-1", 3
		e.Record.CreatedAt = time.Date(2026, 2, 28, 23, 30, 0, 1000, time.UTC)
		want(t, publish(t, t.Context(), b.publisher(Config{Wire: c}), e)[0], taken)
	}
	parts, err := b.records(b.context(), len(formats))
	if err != nil || len(parts[0]) != len(formats) {
		t.Fatalf("%d records (%v), want %d", len(parts[0]), err, len(formats))
	}
	var text strings.Builder
	for i, c := range formats {
		r := parts[0][i]
		fmt.Fprintf(&text, "%s %s\n  key %s\n  timestamp %s\n", c.Format, strings.Join(c.Fields, ","), r.Key, r.Timestamp.UTC().Format(time.RFC3339Nano))
		for _, h := range r.Headers {
			fmt.Fprintf(&text, "  header %s: %s\n", h.Key, h.Value)
		}
		fmt.Fprintf(&text, "  value %s\n\n", r.Value)
	}
	const file = "testdata/wire.golden"
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil || string(golden) != text.String() {
		t.Errorf("%s differs (%v); go test -update writes it. Got:\n%s", file, err, text.String())
	}
}
