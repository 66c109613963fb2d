// Package webhook publishes to an HTTP endpoint: one POST request a message, signed as Standard Webhooks has it where
// there are secrets. docs/brokers/webhook.md says what each answer means for a message.
package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config says where messages go. URL is needed.
type Config struct {
	// URL is the endpoint: https://host/path, or http:// where the way there is safe. A user and password in it are sent as
	// basic authentication.
	URL string
	// Secrets sign each request (Standard Webhooks 1.0, scheme v1): whsec_ and 24 to 64 bytes in base64. Each of them signs,
	// so that a receiver takes a request by the old one or the new one while they are changed. None: nothing is signed.
	Secrets []string
	// Authorization is the value of that header: Bearer and a token, for example. Not beside a user in the URL.
	Authorization string
	// Concurrency is how many requests are on their way at once; others wait. 0: 16; at most 1,000.
	Concurrency int
	// Timeout is how long a request waits for its answer before the message is Uncertain; the context of Publish may end it
	// earlier. 0: 10 s; at least 100 ms.
	Timeout time.Duration
	// AllowNetworks are networks to which connections are made although they are not public: 10.1.0.0/16, 127.0.0.1/32.
	// Without them an address that is private, loopback, link-local, shared or reserved is refused when it is dialed,
	// whatever name or URL led to it.
	AllowNetworks []netip.Prefix
	// TLS is for certificates that the system does not know, or of the client; it is cloned. nil: the system's.
	TLS *tls.Config
	// Wire says how messages are written; the zero value is the raw format. Templates are refused: there is one URL.
	Wire broker.WireConfig
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	u, fault := parseURL(c.URL)
	add(fault != "", "URL %s", fault)
	for i, secret := range c.Secrets {
		_, err := parseSecret(secret)
		add(err != nil, "Secrets[%d] %v", i, err)
	}
	add(u != nil && u.User != nil && c.Authorization != "", "Authorization stands beside a user in the URL: want one of them")
	add(!validValue(c.Authorization), "Authorization has a line break or another control character")
	add(c.Concurrency < 0 || c.Concurrency > 1000, "Concurrency is %d: want 1 to 1,000, or 0 for 16", c.Concurrency)
	add(c.Timeout != 0 && c.Timeout < 100*time.Millisecond, "Timeout is %s: want 100ms at least, or 0 for 10s", c.Timeout)
	for _, p := range c.AllowNetworks {
		add(!p.IsValid(), "AllowNetworks has an invalid network")
	}
	for _, f := range c.Wire.Faults() {
		add(true, "%s %s", f.Setting, f.Detail)
	}
	add(c.Wire.Topic != "" || c.Wire.Key != "" || c.Wire.RoutingKey != "", "topic_template, key_template and routing_key_template are for other brokers: an endpoint has one URL")
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "webhook publisher", Detail: strings.Join(faults, "; ")}
}

// CheckURL says whether messages can go to an address. Its error does not repeat it, for it may hold a password.
func CheckURL(address string) error {
	if _, fault := parseURL(address); fault != "" {
		return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "webhook address", Detail: fault, Hint: "write https://host/path"}
	}
	return nil
}

func parseURL(address string) (*url.URL, string) {
	u, err := url.Parse(address)
	switch {
	case address == "":
		return nil, "is missing: name the endpoint, https://host/path"
	case err != nil:
		return nil, "cannot be read: are special characters in the password written as %40 and the like?"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "is neither https:// nor http://"
	case u.Hostname() == "":
		return nil, "names no host"
	case u.Fragment != "":
		return nil, "has a fragment, which is never sent"
	}
	return u, ""
}

func (c Config) withDefaults() Config {
	if c.Concurrency == 0 {
		c.Concurrency = 16
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	return c
}

// Publisher posts to one endpoint. It is safe for concurrent use. At most Config.Concurrency goroutines of its own send;
// they end when there is nothing to send. Close ends the rest.
type Publisher struct {
	cfg    Config
	url    *url.URL
	keys   []key
	wire   *broker.Wire
	client *http.Client
	dialer *net.Dialer

	mu      sync.Mutex
	queue   []*flight     // what waits, oldest first
	running int           // goroutines that send
	open    int           // messages whose done has not returned
	answers uint64        // how often the endpoint has answered
	usual   time.Duration // how long it takes
	closing bool

	idle     chan struct{} // closed when open is 0 while closing
	stop     context.Context
	stopNow  context.CancelFunc
	group    sync.WaitGroup // the goroutines
	finished chan struct{}  // closed when they have ended
}

var (
	_ broker.Publisher = (*Publisher)(nil)
	_ broker.Describer = (*Publisher)(nil)
)

// NewPublisher makes a publisher. The endpoint need not be there yet. Proxies of the environment are not used: the guard
// over addresses would see theirs.
func NewPublisher(c Config) (*Publisher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	p := &Publisher{cfg: c, idle: make(chan struct{}), finished: make(chan struct{})}
	p.url, _ = parseURL(c.URL) // checked by Validate, as the rest
	for _, secret := range c.Secrets {
		k, _ := parseSecret(secret)
		p.keys = append(p.keys, k)
	}
	var err error
	if p.wire, err = broker.NewWire(c.Wire, broker.StyleHTTP); err != nil {
		return nil, err
	}
	p.stop, p.stopNow = context.WithCancel(context.Background())
	p.dialer = &net.Dialer{Timeout: c.Timeout, ControlContext: guard{c.AllowNetworks}.control}
	p.client = &http.Client{
		Transport: &http.Transport{
			DialContext: p.dial, TLSClientConfig: c.TLS.Clone(), ForceAttemptHTTP2: true, TLSHandshakeTimeout: c.Timeout,
			MaxIdleConnsPerHost: c.Concurrency, IdleConnTimeout: 90 * time.Second,
			MaxResponseHeaderBytes: maxAnswer, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p, nil
}

// dial connects for as long as the publisher is open: a connection that is being made may outlive the request that asked
// for it.
func (p *Publisher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stop, cancel)()
	return p.dialer.DialContext(ctx, network, address)
}

// Capabilities: nothing is claimed. What an endpoint takes, and whether it knows a message again, it alone knows.
func (p *Publisher) Capabilities() broker.Capabilities { return broker.Capabilities{} }

// Describe says how messages are written.
func (p *Publisher) Describe() string { return p.wire.Describe() }

// Check connects to the endpoint, with its certificate if it has one, and sends no request: an endpoint that takes none
// but POST would take it for a message.
func (p *Publisher) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	err := p.connect(ctx)
	if err == nil {
		return nil
	}
	e := &outbox.Error{Code: broker.CodeUnavailable, Op: "check " + p.url.Hostname(), Detail: "the endpoint cannot be reached", Err: err}
	e.Hint = "correct the URL, or start the endpoint; a relay goes on by itself"
	if refused := asRefused(err); refused != nil {
		e.Code, e.Detail, e.Err, e.Hint = CodeAddressRefused, "its address is not public", refused, hintAllow
	}
	return e
}

func (p *Publisher) connect(ctx context.Context) error {
	if p.stop.Err() != nil {
		return errClosed
	}
	port := p.url.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[p.url.Scheme]
	}
	conn, err := p.dial(ctx, "tcp", net.JoinHostPort(p.url.Hostname(), port))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if p.url.Scheme == "http" {
		return nil
	}
	config := p.cfg.TLS.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName = p.url.Hostname()
	}
	return tls.Client(conn, config).HandshakeContext(ctx)
}

// Close waits for the answers on their way until ctx ends; what is left then is answered Uncertain if it was sent, and
// Unavailable if not.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		if p.open == 0 {
			close(p.idle)
		}
		go p.finish()
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
		p.drop(func(*flight) bool { return true }, closed.errorf("not sent before the publisher was closed: %w", ctx.Err()))
	}
	p.stopNow()  // what is on its way ends
	<-p.finished // at once: every request has ended
	return nil
}

// finish frees what the publisher made, once its goroutines have ended.
func (p *Publisher) finish() {
	<-p.stop.Done()
	p.group.Wait()
	p.client.CloseIdleConnections()
	close(p.finished)
}
