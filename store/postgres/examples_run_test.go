package postgres_test

import (
	"net/url"
	"slices"
	"testing"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// The examples use the tables' own names, so they get a database to themselves, and run one after the other on what the ones
// before have left.
func TestTheExamplesRun(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	name := server.Schema
	server.Exec(t, `CREATE DATABASE `+name)
	u, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = name
	pool = pgtest.Connect(t, u.String(), nil)
	t.Cleanup(func() {
		pool.Close()
		if _, err := server.Pool.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	db = pgtest.Standard(t, pool)
	if _, err := pool.Exec(ctx, `CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	ExampleMigrate()
	ExampleWriter()
	ExampleWriter_Queue()
	ExampleSQLWriter()
	outboxes, err := postgres.Open(ctx, pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := outboxes.Register(ctx, store.Sink{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	ExampleAdmin_State()
	got := pgtest.All[string](t, pool, `SELECT type FROM outbox_messages WHERE partition_key = 'order-7' ORDER BY seq`)
	if want := []string{"OrderCreated", "OrderPaid", "OrderShipped"}; !slices.Equal(got, want) {
		t.Errorf("the examples wrote %q, want %q", got, want)
	}
	if state := pgtest.One[string](t, pool, `SELECT state FROM orders WHERE id = 'order-7'`); state != "paid" {
		t.Errorf("the order is %s", state)
	}
}
