package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/outbox"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// A world is a schema, a stream and a topic of one test's own.
type world struct {
	settings
	t       *testing.T
	pool    *pgxpool.Pool
	streams jetstream.JetStream
}

func newWorld(t *testing.T) *world {
	t.Helper()
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := hex.EncodeToString(b[:])
	w := &world{t: t, settings: settings{
		listen: "127.0.0.1:0", database: needed(t, "ONWARD_TEST_POSTGRES_URL"), nats: needed(t, "ONWARD_TEST_NATS_URL"),
		schema: "orders_" + name, stream: "ORDERS_" + name, topic: "orders." + name,
	}}
	var err error
	w.pool, err = connect(t.Context(), w.settings)
	w.must(err)
	w.exec(`CREATE SCHEMA ` + w.schema)
	nc, err := nats.Connect(w.nats, nats.Options{Name: t.Name()})
	w.must(err)
	w.streams, err = jetstream.New(nc)
	w.must(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = w.streams.DeleteStream(ctx, w.stream) // a test may not have made it
		nc.Close()
		if _, err := w.pool.Exec(ctx, `DROP SCHEMA `+w.schema+` CASCADE`); err != nil {
			t.Errorf("drop schema %s: %v", w.schema, err)
		}
		w.pool.Close()
	})
	return w
}

func needed(t *testing.T, variable string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		t.Skip(variable + ` is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
	}
	return value
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// count answers a question whose answer is a number.
func (w *world) count(sql string) (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), sql).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// A running service.
type running struct {
	t    *testing.T
	url  string
	stop func() error // as SIGTERM does; returns what run returned
}

// start runs the service until the test ends, or stop is called.
func (w *world) start() *running {
	w.t.Helper()
	w.must(prepare(w.t.Context(), w.pool, w.settings))
	listener, err := new(net.ListenConfig).Listen(w.t.Context(), "tcp", w.listen)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, listener, w.pool, w.settings)
		close(ended)
	}()
	r := &running{t: w.t, url: "http://" + listener.Addr().String()}
	r.stop = func() error { cancel(); return <-ended }
	w.t.Cleanup(func() { _ = r.stop() })
	return r
}

// call sends a request and returns the answer's order and receipt.
func (r *running) call(method, path, body string, wantStatus int) (o Order, receipt outbox.Receipt) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewBufferString(body))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if response.StatusCode != wantStatus {
		r.t.Fatalf("%s %s: %s: %s, want %d", method, path, response.Status, text, wantStatus)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		r.t.Fatalf("%s %s: %s: %v", method, path, text, err)
	}
	if header := response.Header.Get(receiptHeader); header != "" {
		if receipt, err = outbox.ParseReceipt(header); err != nil {
			r.t.Fatal(err)
		}
	}
	return o, receipt
}

// messages reads the first n messages of the stream, in its order.
func (w *world) messages(n int) []jetstream.Msg {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	consumer, err := w.streams.OrderedConsumer(ctx, w.stream, jetstream.OrderedConsumerConfig{})
	w.must(err)
	all := make([]jetstream.Msg, 0, n)
	for len(all) < n {
		m, err := consumer.Next(jetstream.FetchContext(ctx))
		if err != nil {
			w.t.Fatalf("message %d of %d: %v", len(all)+1, n, err)
		}
		all = append(all, m)
	}
	return all
}

// stored is how many messages the stream has.
func (w *world) stored() uint64 {
	w.t.Helper()
	stream, err := w.streams.Stream(w.t.Context(), w.stream)
	w.must(err)
	return stream.CachedInfo().State.Msgs
}

// eventually polls until the condition holds.
func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			w.t.Fatalf("did not happen within %s: %s", patience, what)
		case <-tick.C:
		}
	}
}
