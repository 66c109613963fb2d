package watermill

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/broker/watermill"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/sqlite"
)

// database is an outbox, as a service that uses database/sql has it.
type database struct {
	db     *sql.DB
	writer outbox.Writer[*sql.Tx]
	store  store.Store
}

func newPostgres(t *testing.T) (d database) {
	t.Helper()
	schema := fmt.Sprintf("e2e_wm_%08x", rand.Uint32())
	pool, err := pgxpool.New(t.Context(), needed(t, "ONWARD_TEST_POSTGRES_URL"))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
		defer cancel()
		_, _ = pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
		pool.Close()
	})
	_, err = pool.Exec(t.Context(), "CREATE SCHEMA "+schema)
	must(t, err)
	must(t, postgres.Migrate(t.Context(), pool, postgres.MigrateConfig{Schema: schema, Partitions: 4}))
	d.store, err = postgres.Open(t.Context(), pool, postgres.Config{Schema: schema})
	must(t, err)
	d.db, d.writer = stdlib.OpenDBFromPool(pool), postgres.NewSQLWriter(postgres.WriterConfig{Schema: schema})
	t.Cleanup(func() { _ = d.db.Close() })
	return d
}

func newSQLite(t *testing.T) (d database) {
	t.Helper()
	var err error
	d.db, err = sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "shop.db"), sqlite.FileConfig{Create: true})
	must(t, err)
	t.Cleanup(func() { _ = d.db.Close() })
	must(t, sqlite.Migrate(t.Context(), d.db, sqlite.MigrateConfig{}))
	d.store, err = sqlite.Open(t.Context(), d.db, sqlite.Config{})
	must(t, err)
	d.writer = sqlite.NewSQLWriter(sqlite.WriterConfig{})
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish publishes messages in a transaction of their own, by Watermill's interface, and commits it or rolls it back.
func (d *database) publish(t *testing.T, commit bool, topic string, ms ...*message.Message) {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), nil)
	must(t, err)
	var p message.Publisher = watermill.NewTxPublisher(t.Context(), tx, d.writer, watermill.TxConfig{KeyMetadata: "order", ContentType: "application/json"})
	must(t, p.Publish(topic, ms...))
	must(t, p.Close())
	if !commit {
		must(t, tx.Rollback())
		return
	}
	must(t, tx.Commit())
}

func order(key string, n int) *message.Message {
	m := message.NewMessage(wm.NewUUID(), fmt.Appendf(nil, `{"n":%d}`, n))
	m.Metadata.Set("order", key)
	m.Metadata.Set("name", "OrderPaid")
	return m
}

// There and back: what a service publishes by Watermill's interface within its transactions comes out of a publisher of Watermill
// behind the relay: what was committed, all of it, in the order of each key, and nothing of what was rolled back.
func TestCommittedMessagesComeOutInOrderAndNoOthers(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) database{"PostgreSQL": newPostgres, "SQLite": newSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			bus := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, wm.NopLogger{})
			t.Cleanup(func() { _ = bus.Close() })
			arriving, err := bus.Subscribe(context.Background(), "shop.orders")
			must(t, err)

			sent, rolledBack := map[string][]string{}, map[string]bool{}
			total := 0
			for n := range 30 {
				key := fmt.Sprint("order-", n%3)
				lost := order(key, -1)
				rolledBack[lost.UUID] = true
				d.publish(t, false, "orders", lost, order(key, -2))
				first, second := order(key, n), order(key, n)
				d.publish(t, true, "orders", first, second)
				sent[key] = append(sent[key], first.UUID, second.UUID)
				total += 2
			}
			short := message.NewMessage(wm.NewShortUUID(), []byte("last"))
			d.publish(t, true, "orders", short)
			total++

			config := watermill.Config{}
			config.Wire.Topic = "shop.{{.Topic}}"
			publisher, err := watermill.NewPublisher(bus, config)
			must(t, err)
			r, err := relay.New(relay.Config{Store: d.store, Sinks: []relay.Sink{{Name: "bus", Publisher: publisher}}})
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			defer running.Wait()
			defer stop()

			got, found := map[string][]string{}, false
			late := time.After(brokertest.Patience)
			for range total {
				select {
				case m := <-arriving:
					m.Ack()
					key := m.Metadata.Get("order")
					if rolledBack[m.UUID] {
						t.Errorf("%s was rolled back, and arrived", m.UUID)
					}
					if m.Metadata.Get(watermill.UUIDMetadata) == short.UUID {
						found = true
						continue
					}
					got[key] = append(got[key], m.UUID)
					if m.Metadata.Get("onward-key") != key || m.Metadata.Get("onward-type") != "OrderPaid" || m.Metadata.Get("content-type") != "application/json" {
						t.Errorf("metadata %v", m.Metadata)
					}
				case <-late:
					t.Fatalf("%v arrived, want %v", got, sent)
				}
			}
			if !maps.EqualFunc(got, sent, slices.Equal) || !found {
				t.Errorf("arrived (short UUID: %t):\n%v\nwant\n%v", found, got, sent)
			}
		})
	}
}

// A message that is published again, as Watermill's router does after a Nack, is refused by its id, and the caller knows.
func TestAMessageThatIsPublishedTwiceIsRefused(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) database{"PostgreSQL": newPostgres, "SQLite": newSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, m := open(t), order("order-1", 1)
			d.publish(t, true, "orders", m)
			tx, err := d.db.BeginTx(t.Context(), nil)
			must(t, err)
			defer func() { _ = tx.Rollback() }()
			err = watermill.NewTxPublisher(t.Context(), tx, d.writer, watermill.TxConfig{}).Publish("orders", m)
			if outbox.CodeOf(err) != outbox.ErrDuplicateMessage.Code {
				t.Errorf("%v, want %s", err, outbox.ErrDuplicateMessage.Code)
			}
		})
	}
}
