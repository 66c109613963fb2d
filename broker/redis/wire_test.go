package redis

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// All fields of one message in each format, as a consumer gets them.
func TestWhatArrivesInEachFormat(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	var text strings.Builder
	for _, c := range []broker.WireConfig{
		{},
		{Fields: []string{"scope", "aggregate_type", "aggregate_id", "event_id", "diagnosis"}},
		{Format: broker.FormatBinary, Source: "/shop/orders"},
		{Format: broker.FormatStructured, Source: "/shop/orders"},
	} {
		c.Topic = b.topic
		e := message("orders.paid", "order-7")
		e.ID, _ = outbox.ParseID("01020304-0506-7008-890a-0b0c0d0e0f10")
		e.Type, e.ContentType, e.Payload = "OrderPaid", "application/json", []byte(`{"total":1250}`)
		e.CorrelationID, e.CausationID = "checkout-881", "payment-3"
		e.Scope, e.AggregateType, e.AggregateID, e.EventID = "eu", "order", "7", "event-9"
		e.Record.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "zone": "b"}
		e.Seq, e.Epoch, e.Lineage, e.Relay, e.Attempt = 4711, 9, "2", "shop-1", 3
		e.Record.CreatedAt = time.Date(2026, 2, 28, 23, 30, 0, 1000, time.UTC)
		p := connected(t, b.publisher(Config{Wire: c}))
		want(t, publish(t, t.Context(), p, e)[0], taken)
		closeNow(p)
		entry, err := b.client.Do(t.Context(), "xrevrange", b.topic, "+", "-", "count", 1).Slice()
		b.must(err)
		fields := entry[0].([]any)[1].([]any)
		fmt.Fprintf(&text, "%s %s\n", or(string(c.Format), "raw"), strings.Join(c.Fields, ","))
		for i := 0; i < len(fields); i += 2 {
			fmt.Fprintf(&text, "  %s: %s\n", fields[i], fields[i+1])
		}
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

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
