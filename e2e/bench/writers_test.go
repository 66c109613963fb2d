package bench

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/store/postgres"
)

func newTick(b testing.TB) <-chan time.Time {
	t := time.NewTicker(5 * time.Millisecond)
	b.Cleanup(t.Stop)
	return t.C
}

// BenchmarkWriters is what the wake-up costs those who write: 8 connections, one transaction after the other on each, with a row of the
// service's own and a message. Each iteration is a slice of half a second with what wakes relays in the trigger and one without it, in turn,
// beside a relay that is
//
//	awake   publishing all that is written, to nowhere
//	asleep  woken again and again: its sink takes nothing of what is written
//	absent  not there
//
// The ratio is the median of the slices with it by those without it beside them; notify/s what was notified meanwhile. cpu-ratio is
// the time that the server's processes of the writers have worked for a transaction, without it by with it: what others do on the
// machine changes it less.
func BenchmarkWriters(b *testing.B) {
	pool := newDatabase(b)
	exec(b, pool, `CREATE TABLE plain_rows (id uuid PRIMARY KEY, topic text NOT NULL, partition_key text NOT NULL, payload bytea NOT NULL)`)
	for _, c := range []struct {
		name  string
		sinks []relay.Sink
	}{
		{"awake", []relay.Sink{{Name: "awake", Publisher: newNoop(true, -1), Start: latest}}},
		{"asleep", []relay.Sink{{Name: "asleep", Publisher: newNoop(true, -1), Start: latest, Selection: outbox.Selection{Topics: []outbox.Pattern{"other"}}}}},
		{"absent", nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.sinks != nil {
				relays, err := pgxpool.NewWithConfig(b.Context(), pool.Config())
				must(b, err)
				b.Cleanup(relays.Close)
				runs(b, relays, relay.Config{Sinks: c.sinks})
			}
			interleaved(b, pool)
		})
	}
}

func interleaved(b *testing.B, pool *pgxpool.Pool) {
	config := pool.Config()
	config.MaxConns, config.MinConns = 8, 8
	config.ConnConfig.RuntimeParams["application_name"] = "writers"
	writers, err := pgxpool.NewWithConfig(b.Context(), config)
	must(b, err)
	defer writers.Close()
	notified := countNotifications(b, pool)
	stamp := one[string](b, pool, `SELECT pg_get_functiondef('outbox_stamp()'::regprocedure)`)
	stamps := [2]string{regexp.MustCompile(`(?s)IF pg_sequence_last_value.*?END IF;`).ReplaceAllString(stamp, ""), stamp}
	if stamps[0] == stamp {
		b.Fatalf("outbox_stamp does not wake relays:\n%s", stamp)
	}
	var worked, made [2]float64 // without, with
	slice := func(with bool) float64 {
		kind := 0
		if with {
			kind = 1
		}
		exec(b, pool, stamps[kind])
		before := cpu(b, pool)
		rate, n := write(b, writers, time.Second/2)
		worked[kind] += cpu(b, pool) - before
		made[kind] += float64(n)
		return rate
	}
	slice(true)
	worked, made = [2]float64{}, [2]float64{}
	var ratios, with, without []float64
	began, before := time.Now(), notified.Load()
	for i := 0; b.Loop(); i++ {
		var a, z float64
		if i%2 == 0 {
			a, z = slice(true), slice(false)
		} else {
			z, a = slice(false), slice(true)
		}
		with, without, ratios = append(with, a), append(without, z), append(ratios, a/z)
	}
	b.ReportMetric(float64(notified.Load()-before)/time.Since(began).Seconds()*2, "notify/s") // half the time without it
	exec(b, pool, stamp)
	middle := func(all []float64) float64 { slices.Sort(all); return all[len(all)/2] }
	b.ReportMetric(middle(with), "tx/s")
	b.ReportMetric(middle(without), "tx/s-without")
	b.ReportMetric(middle(ratios), "ratio")
	b.ReportMetric((worked[0]/made[0])/(worked[1]/made[1]), "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}

// cpu is for how many seconds the server's processes that serve the writers have worked (Linux).
func cpu(b *testing.B, pool *pgxpool.Pool) (seconds float64) {
	b.Helper()
	for _, pid := range one[[]int](b, pool, `SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = 'writers'`) {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		must(b, err)
		_, rest, _ := strings.Cut(string(text), ") ") // behind the name: state, parent, ..., ticks in user mode, ticks in the kernel
		for _, field := range strings.Fields(rest)[11:13] {
			ticks, _ := strconv.ParseFloat(field, 64)
			seconds += ticks / 100
		}
	}
	return seconds
}

// write is how many transactions a second 8 writers make, and how many they made.
func write(b *testing.B, writers *pgxpool.Pool, d time.Duration) (rate float64, made int64) {
	b.Helper()
	out := postgres.NewWriter(postgres.WriterConfig{})
	payload := make([]byte, payloadBytes)
	_, _ = rand.Read(payload)
	var n atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for hand := range 8 {
		group.Go(func() {
			for i := 0; time.Since(began) < d; i++ {
				err := pgx.BeginFunc(b.Context(), writers, func(tx pgx.Tx) error {
					if _, err := tx.Exec(b.Context(), query("bare_write"), [16]byte(outbox.NewID()), "orders", "key", payload); err != nil {
						return err
					}
					_, err := out.Write(b.Context(), tx, outbox.Message{Topic: "orders", Type: "Measured", Key: "key-" + strconv.Itoa((i*8+hand)%keys), Payload: payload})
					return err
				})
				if err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	group.Wait()
	return float64(n.Load()) / time.Since(began).Seconds(), n.Load()
}

// countNotifications counts what writers notify.
func countNotifications(b *testing.B, pool *pgxpool.Pool) *atomic.Int64 {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), pool.Config().ConnString())
	must(b, err)
	_, err = conn.Exec(b.Context(), `LISTEN outbox_wake`)
	must(b, err)
	n := new(atomic.Int64)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			got, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			if got.Payload == "public" {
				n.Add(1)
			}
		}
	}()
	b.Cleanup(func() { stop(); <-ended; _ = conn.Close(context.Background()) })
	return n
}
