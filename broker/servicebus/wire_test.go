package servicebus

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// All of one message in each format, as Microsoft's client gets it.
func TestWhatArrivesInEachFormat(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	var golden strings.Builder
	for n, c := range []broker.WireConfig{
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
		e.Record.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "zone": "b", "not-before": "2026-03-01T08:00:00+01:00"}
		e.Seq, e.Epoch, e.Lineage, e.Relay, e.Attempt = 4711, 9, "2", "shop-1", 3
		e.Record.CreatedAt = time.Date(2026, 2, 28, 23, 30, 0, 1000, time.UTC)
		p := connected(t, b.publisher(Config{Wire: c, ScheduleHeader: "not-before"}))
		want(t, publish(t, t.Context(), p, e)[0], taken)
		closeNow(p)
		all, err := b.receive(t.Context(), n+1)
		b.must(err)
		m := all[n]
		fmt.Fprintf(&golden, "%s %s\n", or(string(c.Format), "raw"), strings.Join(c.Fields, ","))
		fmt.Fprintf(&golden, "  MessageID %s\n  SessionID %s\n  CorrelationID %s\n  Subject %s\n  ContentType %s\n  ScheduledEnqueueTime %s\n",
			m.MessageID, *m.SessionID, *m.CorrelationID, *m.Subject, *m.ContentType, m.ScheduledEnqueueTime.UTC().Format(time.RFC3339))
		for _, name := range slices.Sorted(maps.Keys(m.ApplicationProperties)) {
			fmt.Fprintf(&golden, "  %s: %s\n", name, m.ApplicationProperties[name])
		}
		fmt.Fprintf(&golden, "  body: %s\n", m.Body)
	}
	const file = "testdata/wire.golden"
	if *update {
		if err := os.WriteFile(file, []byte(golden.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(file)
	if err != nil || string(before) != golden.String() {
		t.Errorf("%s differs (%v); go test -update writes it. Got:\n%s", file, err, golden.String())
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
