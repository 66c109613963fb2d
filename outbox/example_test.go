package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/onwardhq/onward/outbox"
)

func Example() {
	// What a writer does with a message before it asks the database: fill in what is missing, and refuse what is wrong.
	var rules outbox.Rules
	m, err := rules.Prepare(context.Background(), outbox.Message{
		Topic: "orders", Key: "order-7", Type: "OrderPaid", ContentType: "application/json", Payload: []byte(`{"total": 12}`),
	})
	fmt.Println(err, m.ID.IsZero())

	_, err = rules.Prepare(context.Background(), outbox.Message{Topic: "orders"})
	fmt.Println(err)
	fmt.Println(errors.Is(err, outbox.ErrTypeRequired), outbox.Hint(err))
	// Output:
	// <nil> false
	// write message (topic "orders", type ""): the message has no type (onward/type-required)
	// true set Message.Type
}

func ExampleMessage() {
	m := outbox.Message{
		ID:            outbox.IDFrom("billing/invoice-paid", "2026-0001"), // leave it out where nothing names the message already
		Topic:         "invoices.paid",
		Key:           "customer-12", // messages of one customer stay in order
		Type:          "InvoicePaid",
		ContentType:   "application/json",
		CorrelationID: "checkout-881",
		Payload:       []byte(`{"invoice": "2026-0001"}`),
		Headers:       map[string]string{"region": "eu"},
	}
	fmt.Println(m.ID, outbox.PartitionOf(m.Key, m.ID, 64))
	// Output: f53ae365-0ca8-57e9-9f2c-05e97f4434f8 50
}

func ExampleIDFrom() {
	// The same invoice has the same id, however often it is written: the second time is ErrDuplicateMessage.
	fmt.Println(outbox.IDFrom("billing/invoice-paid", "2026-0001"))
	fmt.Println(outbox.IDFrom("billing/invoice-paid", "2026-0002"))
	// Output:
	// f53ae365-0ca8-57e9-9f2c-05e97f4434f8
	// e75be200-c01c-54f1-b0c3-7552454bcecd
}

func ExampleReceipt() {
	written := outbox.Receipt{ID: outbox.IDFrom("billing/invoice-paid", "2026-0001"), Partition: 18, Seq: 4711, Tx: 90210}
	header := written.String() // of an answer, for a caller that wants to wait for the message
	fmt.Println(header)

	found, err := outbox.ParseReceipt(header)
	fmt.Println(found == written, err)
	// Output:
	// f53ae365-0ca8-57e9-9f2c-05e97f4434f8.18.4711.90210
	// true <nil>
}

func ExampleParseReceipt() {
	_, err := outbox.ParseReceipt("f53ae365-0ca8-57e9-9f2c-05e97f4434f8.18")
	fmt.Println(err)
	fmt.Println(outbox.Hint(err))
	// Output:
	// parse receipt: not a receipt: want id.partition.seq.transaction (onward/field-invalid)
	// pass the receipt on as the writer returned it
}

func ExampleRules_requireKey() {
	rules := outbox.Rules{RequireKey: []outbox.Pattern{"orders.>"}}
	_, err := rules.Prepare(context.Background(), outbox.Message{Topic: "orders.paid", Type: "OrderPaid"})
	fmt.Println(err)
	fmt.Println(outbox.Hint(err))
	// Output:
	// write message (topic "orders.paid", type "OrderPaid"): the message has no key (onward/key-required)
	// set what must stay in order, for example Message{Topic: "orders.paid", Key: order.ID, ...}
}

// request is what a service keeps in its contexts.
type request struct{ traceparent, correlationID string }

type requestKey struct{}

func ExampleRules_enrich() {
	rules := outbox.Rules{Enrich: func(ctx context.Context, m *outbox.Message) {
		r, ok := ctx.Value(requestKey{}).(request)
		if !ok {
			return
		}
		if m.CorrelationID == "" { // what the caller set wins
			m.CorrelationID = r.correlationID
		}
		if _, set := m.Headers["traceparent"]; !set {
			m.Headers["traceparent"] = r.traceparent
		}
	}}
	ctx := context.WithValue(context.Background(), requestKey{}, request{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "checkout-881"})
	m, err := rules.Prepare(ctx, outbox.Message{Topic: "orders", Type: "OrderPaid"})
	fmt.Println(err, m.CorrelationID, m.Headers["traceparent"])
	// Output: <nil> checkout-881 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
}
