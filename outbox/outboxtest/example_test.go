package outboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/outbox/outboxtest"
)

// Shop is a service: it takes any writer for its transactions.
type Shop struct{ Out outbox.Writer[*sql.Tx] }

// Pay marks an order as paid, and says so.
func (s Shop) Pay(ctx context.Context, tx *sql.Tx, order string) error {
	// UPDATE orders SET state = 'paid' ...
	_, err := s.Out.Write(ctx, tx, outbox.Message{Topic: "orders", Key: order, Type: "OrderPaid"})
	return err
}

func ExampleRecorder() {
	rec := outboxtest.NewRecorder[*sql.Tx](outboxtest.RecorderConfig{Rules: outbox.Rules{RequireKey: []outbox.Pattern{"orders"}}})
	shop := Shop{Out: rec}
	fmt.Println(shop.Pay(context.Background(), nil, "order-7"))
	fmt.Println(shop.Pay(context.Background(), nil, ""))
	for _, r := range rec.Records() {
		fmt.Println(r.Seq, r.Type, r.Key)
	}
	// Output:
	// <nil>
	// write message (topic "orders", type "OrderPaid"): the message has no key (onward/key-required)
	// 1 OrderPaid order-7
}

func ExampleRecorder_Context() {
	rec := outboxtest.NewRecorder[*sql.Tx](outboxtest.RecorderConfig{})
	cancelOrder := func(ctx context.Context, order string) error {
		return outbox.Add(ctx, outbox.Message{Topic: "orders", Key: order, Type: "OrderCancelled"})
	}
	fmt.Println(cancelOrder(rec.Context(context.Background()), "order-7"), rec.Records()[0].Type)
	// Output: <nil> OrderCancelled
}

func ExampleRequireWritten() {
	test := func(t *testing.T, out outbox.Writer[*sql.Tx], source outboxtest.Source[*sql.Tx], tx *sql.Tx) {
		if err := (Shop{Out: out}).Pay(t.Context(), tx, "order-7"); err != nil {
			t.Fatal(err)
		}
		outboxtest.RequireWritten(t, source, tx, outbox.Message{Topic: "orders", Type: "OrderPaid", Key: "order-7"})
	}
	_ = test // with postgres.NewSQLWriter as both, in a transaction of the test's database
	// Output:
}
