package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

// BenchmarkLatency is the time from the answer to a commit to JetStream's acknowledgement, at a steady rate, beside a bare loop in the
// same run: its writers notify in every transaction, it listens, reads what is new in a plain table, and publishes it message by message.
// Each iteration is a run of both; figures are the medians of all runs. Both servers are the benchmark's own, with durable settings.
//
//	p50-ms, p99-ms            the relay's
//	bare-p50-ms, bare-p99-ms  the bare loop's
//	p50-ratio, p99-ratio      of the two
//	bare-lost                 messages that the bare loop never saw: they were committed after others with higher numbers
func BenchmarkLatency(b *testing.B) {
	pool := newDatabase(b)
	exec(b, pool, `CREATE TABLE plain_rows (no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL, topic text NOT NULL, partition_key text NOT NULL, payload bytea NOT NULL)`)
	url := newStream(b)
	for _, c := range []struct{ rate, n int }{{1, 10}, {100, 500}, {1000, 3000}} {
		b.Run(fmt.Sprint(c.rate, "-a-second"), func(b *testing.B) {
			bare, onward := newBareLoop(b, pool, url), newRelayLoop(b, pool, url)
			var bares, onwards []times
			for b.Loop() {
				bares = append(bares, bare.measure(b, pool, c.rate, c.n))
				onwards = append(onwards, onward.measure(b, pool, c.rate, c.n))
			}
			report(b, bares, onwards)
			b.ReportMetric(float64(bare.lost), "bare-lost")
		})
	}
}

// times are of one run, sorted.
type times []time.Duration

func (t times) at(percent int) time.Duration { return t[min(len(t)*percent/100, len(t)-1)] }

func median(runs []times, percent int) float64 {
	var all []time.Duration
	for _, r := range runs {
		all = append(all, r.at(percent))
	}
	slices.Sort(all)
	return all[len(all)/2].Seconds() * 1e3
}

func report(b *testing.B, bares, onwards []times) {
	for _, percent := range []int{50, 99} {
		bare, onward := median(bares, percent), median(onwards, percent)
		p := "p" + strconv.Itoa(percent)
		b.ReportMetric(bare, "bare-"+p+"-ms")
		b.ReportMetric(onward, p+"-ms")
		b.ReportMetric(onward/bare, p+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

// clock notes when messages were committed and acknowledged.
type clock struct {
	write func(ctx context.Context, pool *pgxpool.Pool, id outbox.ID) error

	lossy bool // messages may be lost
	lost  int

	mu    sync.Mutex
	acked map[outbox.ID]time.Time
	all   chan struct{} // closed when want were acknowledged
	want  int
}

func (c *clock) note(id outbox.ID) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.acked[id]; known {
		return
	}
	if c.acked[id] = now; len(c.acked) == c.want {
		close(c.all)
	}
}

// measure writes n messages, so many a second and each at its own time, over several connections, and says how long each took.
func (c *clock) measure(b *testing.B, pool *pgxpool.Pool, rate, n int) times {
	b.Helper()
	c.mu.Lock()
	c.acked, c.all, c.want = map[outbox.ID]time.Time{}, make(chan struct{}), n
	c.mu.Unlock()
	began, every := time.Now(), time.Second/time.Duration(rate)
	committed := make(map[outbox.ID]time.Time, n)
	var mu sync.Mutex
	var writers sync.WaitGroup
	const hands = 8
	for hand := range hands {
		writers.Go(func() {
			for i := hand; i < n; i += hands {
				jitter := time.Duration(rand.Int64N(int64(every)))
				<-time.After(time.Until(began.Add(time.Duration(i)*every + jitter)))
				id := outbox.NewID()
				if err := c.write(b.Context(), pool, id); err != nil {
					b.Error(err)
					return
				}
				at := time.Now()
				mu.Lock()
				committed[id] = at
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	patience := 30 * time.Second
	if c.lossy {
		patience = time.Second
	}
	select {
	case <-c.all:
	case <-time.After(patience):
	}
	var took times
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, at := range committed {
		if acked, ok := c.acked[id]; ok {
			took = append(took, max(0, acked.Sub(at)))
		}
	}
	if c.lost += n - len(took); c.lost > 0 && !c.lossy || len(took) == 0 {
		b.Fatalf("%d of %d messages were acknowledged", len(took), n)
	}
	slices.Sort(took)
	return took
}

// newStream starts a nats-server of the benchmark's own, with two streams on disk.
func newStream(b *testing.B) (url string) {
	b.Helper()
	server, err := harness.NewNATS(b.TempDir())
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { _ = server.Stop(syscall.SIGTERM) })
	must(b, server.Start(b.Context()))
	must(b, harness.CreateStream(b.Context(), server.URL, "ONWARD", []string{"orders"}, time.Second))
	must(b, harness.CreateStream(b.Context(), server.URL, "BARE", []string{"bare"}, time.Second))
	return server.URL
}

// newBareLoop is the loop that a service would write by hand.
func newBareLoop(b *testing.B, pool *pgxpool.Pool, url string) *clock {
	b.Helper()
	payload := make([]byte, payloadBytes)
	c := &clock{lossy: true, write: func(ctx context.Context, pool *pgxpool.Pool, id outbox.ID) error {
		_, err := pool.Exec(ctx, query("plain_notify"), [16]byte(id), payload)
		return err
	}}
	conn, err := pgx.Connect(b.Context(), pool.Config().ConnString())
	must(b, err)
	link, err := natsgo.Connect(url)
	must(b, err)
	js, err := jetstream.New(link)
	must(b, err)
	_, err = conn.Exec(b.Context(), `LISTEN plain_rows`)
	must(b, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- bareLoop(ctx, conn, js, one[int64](b, pool, `SELECT coalesce(max(no), 0) FROM plain_rows`), c.note)
	}()
	b.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		_ = conn.Close(context.Background())
		link.Close()
	})
	return c
}

func bareLoop(ctx context.Context, conn *pgx.Conn, js jetstream.JetStream, last int64, acked func(outbox.ID)) error {
	type row struct {
		No      int64
		ID      [16]byte
		Payload []byte
	}
	for {
		rows, err := conn.Query(ctx, query("plain_after"), last)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return err
		}
		for _, r := range found {
			if _, err := js.Publish(ctx, "bare", r.Payload, jetstream.WithMsgID(outbox.ID(r.ID).String())); err != nil {
				return err
			}
			acked(r.ID)
			last = r.No
		}
		if len(found) > 0 {
			continue
		}
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

// newRelayLoop is a relay as it is by default.
func newRelayLoop(b *testing.B, pool *pgxpool.Pool, url string) *clock {
	b.Helper()
	out := postgres.NewWriter(postgres.WriterConfig{})
	payload := make([]byte, payloadBytes)
	c := &clock{write: func(ctx context.Context, pool *pgxpool.Pool, id outbox.ID) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := out.Write(ctx, tx, outbox.Message{ID: id, Topic: "orders", Type: "Measured", Key: "key-" + strconv.Itoa(int(id[15])), Payload: payload})
			return err
		})
	}}
	publisher, err := nats.Dial(url, nats.Options{Name: "latency"}, nats.Config{Stream: "ONWARD"})
	must(b, err)
	runs(b, pool, relay.Config{Sinks: []relay.Sink{{Name: "latency", Publisher: acknowledged{publisher, c.note}, Start: latest}}})
	b.Cleanup(func() { _ = publisher.Close(context.Background()) })
	return c
}

// acknowledged tells of each message that the broker has taken.
type acknowledged struct {
	broker.Publisher
	note func(outbox.ID)
}

func (p acknowledged) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	p.Publisher.Publish(ctx, batch, func(i int, r broker.Result) {
		if r.Outcome == broker.Accepted {
			p.note(batch[i].ID)
		}
		done(i, r)
	})
}
