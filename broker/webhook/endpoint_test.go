package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

const patience = 20 * time.Second

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// endpoint is a server of net/http over TCP that keeps what it is sent.
type endpoint struct {
	tb      testing.TB
	address string
	secure  bool
	// handle answers instead of a plain 204, once the message is kept.
	handle http.HandlerFunc

	mu      sync.Mutex
	server  *http.Server
	arrived []brokertest.Message
	changed chan struct{} // closed at the next arrival
	gate    chan struct{} // closed: requests are answered
}

// certificate is that of httptest, which is made for 127.0.0.1, and who trusts it.
var certificate = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s.TLS.Certificates[0], pool
})

func newEndpoint(tb testing.TB, secure bool, handle http.HandlerFunc) *endpoint {
	tb.Helper()
	e := &endpoint{tb: tb, secure: secure, handle: handle, address: "127.0.0.1:0", changed: make(chan struct{}), gate: make(chan struct{})}
	close(e.gate)
	e.start()
	tb.Cleanup(e.stop)
	return e
}

// start listens, at the same address as before.
func (e *endpoint) start() {
	e.tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", e.address)
	if err != nil {
		e.tb.Fatal(err)
	}
	e.address = l.Addr().String()
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: patience}
	if e.secure {
		own, _ := certificate()
		e.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
		go func() { _ = e.server.ServeTLS(l, "", "") }()
		return
	}
	go func() { _ = e.server.Serve(l) }()
}

// stop closes listener and connections at once.
func (e *endpoint) stop() { _ = e.server.Close() }

// freeze has requests wait.
func (e *endpoint) freeze() (thaw func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	gate := make(chan struct{})
	e.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

func (e *endpoint) url() string {
	if e.secure {
		return "https://" + e.address + "/hook"
	}
	return "http://" + e.address + "/hook"
}

// ServeHTTP keeps the message and answers.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	gate := e.gate
	e.mu.Unlock()
	select {
	case <-gate:
	case <-r.Context().Done():
		return
	}
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m := brokertest.Message{Payload: payload}
	for name, values := range r.Header {
		switch name = strings.ToLower(name); name {
		case "content-length", "user-agent", "accept-encoding": // of HTTP itself
		default:
			for _, value := range values {
				m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: value})
			}
		}
	}
	e.mu.Lock()
	e.arrived = append(e.arrived, m)
	close(e.changed)
	e.changed = make(chan struct{})
	e.mu.Unlock()
	if e.handle != nil {
		e.handle(w, r)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// read is brokertest.Harness.Read.
func (e *endpoint) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	for {
		e.mu.Lock()
		all, changed := append([]brokertest.Message(nil), e.arrived...), e.changed
		e.mu.Unlock()
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

func (e *endpoint) first() brokertest.Message {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.arrived[0]
}

func (e *endpoint) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.arrived)
}

// publisher is one that may connect to this machine and trusts the endpoint.
func (e *endpoint) publisher(c Config) *Publisher {
	e.tb.Helper()
	if c.URL == "" {
		c.URL = e.url()
	}
	if c.AllowNetworks == nil {
		c.AllowNetworks = loopback
	}
	if e.secure && c.TLS == nil {
		_, pool := certificate()
		c.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	p, err := NewPublisher(c)
	if err != nil {
		e.tb.Fatal(err)
	}
	e.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

func message(key string) broker.Envelope {
	return broker.Envelope{
		Record: &outbox.Record{
			Message: outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: key, Type: "OrderPaid", ContentType: "application/json", Payload: []byte(`{"a":1}`)},
			Seq:     7, CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC),
		},
		Epoch: 3, Lineage: "1", Attempt: 1,
	}
}

func messages(n int) []broker.Envelope {
	batch := make([]broker.Envelope, n)
	for i := range batch {
		batch[i] = message("")
	}
	return batch
}

// start publishes and returns a channel of answers for each message.
func start(ctx context.Context, p *Publisher, batch ...broker.Envelope) []chan broker.Result {
	answers := make([]chan broker.Result, len(batch))
	for i := range answers {
		answers[i] = make(chan broker.Result, 2)
	}
	p.Publish(ctx, batch, func(i int, r broker.Result) { answers[i] <- r })
	return answers
}

func wait(tb testing.TB, answer chan broker.Result) broker.Result {
	tb.Helper()
	select {
	case r := <-answer:
		return r
	case <-time.After(patience):
		tb.Fatalf("no answer after %s", patience)
		return broker.Result{}
	}
}

func publish(tb testing.TB, p *Publisher, batch ...broker.Envelope) []broker.Result {
	tb.Helper()
	var results []broker.Result
	for _, answer := range start(tb.Context(), p, batch...) {
		results = append(results, wait(tb, answer))
	}
	return results
}

// want compares an answer with a situation's row of the table.
func want(tb testing.TB, r broker.Result, s situation) {
	tb.Helper()
	brokertest.Want(tb, r, rows()[s])
}

// rows are the table.
func rows() []brokertest.Row {
	rows := make([]brokertest.Row, len(verdicts))
	for i, v := range verdicts {
		rows[i] = brokertest.Row{Outcome: v.outcome, Code: v.code, Seen: v.seen, Means: v.means}
	}
	return rows
}
