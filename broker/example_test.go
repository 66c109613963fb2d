package broker_test

import (
	"fmt"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// A publisher has a WireConfig among its settings, makes the Wire once, and asks it for everything that a message is on the
// wire. Slots of the broker's own (a message id, a timestamp) it fills in itself.
func ExampleWire() {
	w, err := broker.NewWire(broker.WireConfig{
		Format: broker.FormatBinary, Source: "/shop/orders", Topic: "shop.{{.Topic}}", Fields: []string{"scope"},
	}, broker.StyleKafka)
	if err != nil {
		fmt.Println(err) // all faults of the settings at once
		return
	}
	batch := []broker.Envelope{{
		Record: &outbox.Record{Message: outbox.Message{Topic: "orders", Key: "o-1", Type: "OrderPaid", ContentType: "application/json", Scope: "tenant-7", Payload: []byte(`{}`)}},
		Epoch:  1,
	}}
	var out broker.Outgoing // one for each goroutine; its memory is used again
	for i := range batch {
		if err := w.Encode(&batch[i], &out); err != nil {
			fmt.Println(broker.Refuse(err).Outcome) // the answer for this message
			continue
		}
		fmt.Println("topic", out.Topic, "key", out.Key, "payload", string(out.Payload))
		for _, h := range out.Headers {
			fmt.Println(h.Name+":", h.Value)
		}
	}
	// Output:
	// topic shop.orders key o-1 payload {}
	// ce_specversion: 1.0
	// ce_id: 00000000-0000-0000-0000-000000000000
	// ce_source: /shop/orders
	// ce_type: OrderPaid
	// ce_subject: o-1
	// ce_time: 0001-01-01T00:00:00.000000Z
	// ce_partitionkey: o-1
	// ce_sequence: 00000000000000000000
	// content-type: application/json
	// onward-scope: tenant-7
}
