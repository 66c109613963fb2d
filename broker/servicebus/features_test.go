package servicebus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Batches with many keys: each session has its messages in the order of the outbox, and nothing else.
func TestASessionHasItsKeyInOrder(t *testing.T) {
	t.Parallel()
	x := commonPeer(t)
	b := newBench(t, x)
	queue := b.topic + ".sessions"
	x.declare(queue, settings{"sessions": true})
	p := connected(t, b.publisher(Config{}))
	keys := []string{"a", "b", "c", strings.Repeat("long", 60)}
	sent := map[string][]string{}
	for range 25 {
		var batch []broker.Envelope
		for _, key := range keys {
			m := message(queue, key)
			batch, sent[key] = append(batch, m), append(sent[key], m.ID.String())
		}
		for _, r := range publish(t, t.Context(), p, batch...) {
			want(t, r, taken)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, key := range keys {
		r, err := b.client.AcceptSessionForQueue(ctx, queue, session(key), &azservicebus.SessionReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
		b.must(err)
		var got []string
		for len(got) < len(sent[key]) {
			ms, err := r.ReceiveMessages(ctx, 100, nil)
			b.must(err)
			for _, m := range ms {
				got = append(got, m.MessageID)
				if m.ApplicationProperties["onward-key"] != key {
					t.Errorf("session of %q has a message of %v", key, m.ApplicationProperties["onward-key"])
				}
			}
		}
		if !slices.Equal(got, sent[key]) {
			t.Errorf("session of %q: got %v, want %v", key, got, sent[key])
		}
		b.must(r.Close(t.Context()))
	}
}

// With key_template a message without a key has a session of its own.
func TestAMessageWithoutAKeyCanHaveASession(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	b.peer.declare(b.topic, settings{"sessions": true})
	p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Key: "{{or .Key .ID}}"}}))
	m := message(b.topic, "")
	want(t, publish(t, t.Context(), p, m)[0], taken)
	got, err := b.receive(t.Context(), 1)
	if b.must(err); *got[0].SessionID != m.ID.String() {
		t.Errorf("the session is %q", *got[0].SessionID)
	}
}

// The longest id of a session is 128 characters, as .NET counts them; a longer key has a digest in its place.
func TestASessionIsTheKeyOrStandsForIt(t *testing.T) {
	t.Parallel()
	for key, same := range map[string]bool{
		"": true, "a": true, strings.Repeat("k", 128): true, strings.Repeat("k", 129): false,
		strings.Repeat("ü", 127): true, strings.Repeat("🎉", 63) + "ab": true, strings.Repeat("🎉", 63): true,
	} {
		if got := session(key); (got == key) != same || len(got) > 255 {
			t.Errorf("session of %q: %q", key, got)
		}
	}
	if session(strings.Repeat("k", 129)) == session(strings.Repeat("k", 130)) {
		t.Error("two keys have one session")
	}
}

// The reason for a sender of our own (decision 57): Microsoft's client says that a message was sent which the service did not take.
func TestMicrosoftsSenderTakesAReleasedMessageForSent(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	sender, err := b.client.NewSender(b.topic, nil)
	b.must(err)
	for _, outcome := range []string{"released", "modified"} {
		b.peer.declare(b.topic, settings{"outcome": outcome})
		if err := sender.SendMessage(t.Context(), &azservicebus.Message{Body: []byte("lost")}, nil); err != nil {
			t.Errorf("outcome %s: %v: it is mended, and decision 57 may be looked at again", outcome, err)
		}
	}
	b.peer.declare(b.topic, nil)
	if n := b.count(connected(t, b.publisher(Config{}))); n != 0 {
		t.Errorf("%d messages arrived", n)
	}
}

// A link that the service ended while nothing was on its way is opened again for the next message, which is not uncertain.
func TestALinkThatWasIdleIsOpenedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	p := connected(t, b.publisher(Config{}))
	for range 5 {
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		p.mu.Lock()
		l := p.link
		p.mu.Unlock()
		before := l.socket.written.Load()
		b.peer.declare(b.topic, settings{"end": "amqp:link:detach-forced"})
		until(t, "the client knows", func() bool { return l.socket.written.Load() > before })
	}
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
}

// Tokens that end after three seconds: the service would end the link, and no message notices.
func TestTokensAreRenewedBeforeTheyEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	p := connected(t, b.withCredential(newCredential(4*time.Second)))
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	b.peer.declare(b.topic, settings{"refuse": "amqp:not-allowed"}) // the link that there is must do
	for end := time.Now().Add(4500 * time.Millisecond); time.Now().Before(end) && !t.Failed(); <-time.After(50 * time.Millisecond) {
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	}
}

// Where there is no new token in time the service ends the link; the next token opens it again.
func TestALinkWhoseTokenEndedIsOpenedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	c := newCredential(2 * time.Second)
	p := connected(t, b.withCredential(c))
	next := func() broker.Result { return publish(t, t.Context(), p, message(b.topic, ""))[0] }
	want(t, next(), taken)
	c.life.Store(0)
	until(t, "the link is ended", func() bool { r := next(); return r.Outcome == broker.Unavailable })
	want(t, next(), notAuthorized)
	c.life.Store(int64(time.Hour))
	want(t, next(), taken)
}

// Over TLS, to an endpoint other than the namespace, whose name the certificate bears.
func TestConnectionsAreMadeWithTLS(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	address, authority := secured(t, b.peer.host, "shop.servicebus.test")
	connection := "Endpoint=sb://shop.servicebus.test/;" + fullKey
	p := connected(t, b.publisherAt(connection, Options{Endpoint: address, TLS: &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12}}, Config{}))
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	stranger := b.publisherAt(connection, Options{Endpoint: address}, Config{})
	until(t, "a certificate of an unknown authority is refused", func() bool {
		err := stranger.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "certificate signed by unknown authority")
	})
	want(t, publish(t, t.Context(), stranger, message(b.topic, ""))[0], notConnected)
}

// secured stands before a server with TLS; its certificate is for a name.
func secured(t *testing.T, server, name string) (address string, authority *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	authority = x509.NewCertPool()
	authority.AddCert(certificate)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", server)
			if err != nil {
				_ = c.Close()
				continue
			}
			join := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_, _ = to.Close(), from.Close()
			}
			group.Go(func() { join(s, c) })
			group.Go(func() { join(c, s) })
		}
	})
	t.Cleanup(func() { // the publishers are closed before
		_ = l.Close()
	})
	return l.Addr().String(), authority
}

func TestAddressesAreReadOrRefusedWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	const key = "SharedAccessKeyName=relay;SharedAccessKey=s3cr3t=="
	for text, want := range map[string]address{
		"Endpoint=sb://shop.servicebus.windows.net/;" + key:                                           {host: "shop.servicebus.windows.net", key: &sharedKey{"relay", "s3cr3t=="}},
		"endpoint=sb://shop.servicebus.windows.net;" + key + ";EntityPath=orders;":                    {host: "shop.servicebus.windows.net", key: &sharedKey{"relay", "s3cr3t=="}, entity: "orders"},
		"Endpoint=sb://localhost:5673;" + key + ";UseDevelopmentEmulator=true":                        {host: "localhost:5673", key: &sharedKey{"relay", "s3cr3t=="}, emulator: true},
		"Endpoint=sb://h;SharedAccessSignature=SharedAccessSignature sr=s3cr3t&sig=s3cr3t&se=1&skn=r": {host: "h", token: "SharedAccessSignature sr=s3cr3t&sig=s3cr3t&se=1&skn=r"},
		"servicebus://shop.servicebus.windows.net":                                                    {host: "shop.servicebus.windows.net"},
	} {
		got, err := parseAddress(text)
		if err != nil || fmt.Sprint(got.host, got.entity, got.token, got.emulator) != fmt.Sprint(want.host, want.entity, want.token, want.emulator) || (got.key == nil) != (want.key == nil) || got.key != nil && *got.key != *want.key {
			t.Errorf("%s is read as %+v, %v", text, got, err)
		}
	}
	for text, words := range map[string]string{
		"": "scheme", "https://h": "scheme", "servicebus:": "no host", "servicebus://u:s3cr3t@h": "a key comes in a connection string", "servicebus://h/orders": "topic_template",
		"Endpoint=sb://h": "no SharedAccessKeyName",
		"Endpoint=sb://h;SharedAccessKeyName=relay": "no SharedAccessKeyName",
		"Endpoint=https://s3cr3t;" + key:            "Endpoint",
		key:                                         "no Endpoint",
		"Endpoint=sb://h;s3cr3t;" + key:             "without =",
		"Endpoint=sb://h;Unknown=s3cr3t;" + key:     "Unknown",
		"Endpoint=sb://h;" + key + ";SharedAccessSignature=s3cr3t":  "one of them",
		"Endpoint=sb://h;" + key + ";UseDevelopmentEmulator=s3cr3t": "neither true nor false",
	} {
		err := CheckAddress(text)
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: %v, want %q without the secret", text, err, words)
		}
	}
}

func TestDialRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	const good = "Endpoint=sb://h;SharedAccessKeyName=relay;SharedAccessKey=s3cr3t"
	for words, try := range map[string]struct {
		address string
		o       Options
		c       Config
	}{
		"needs Options.Credential": {address: "servicebus://h"},
		"one of them":              {address: good, o: Options{Credential: newCredential(0)}},
		"Timeout":                  {address: good, o: Options{Timeout: -1}},
		"AckTimeout":               {address: good, c: Config{AckTimeout: time.Millisecond}},
		"MaxPending":               {address: good, c: Config{MaxPending: -1}},
		"routing_key_template":     {address: good, c: Config{Wire: broker.WireConfig{RoutingKey: "x"}}},
		"source":                   {address: good, c: Config{Wire: broker.WireConfig{Format: broker.FormatBinary}}},
	} {
		_, err := Dial(try.address, try.o, try.c)
		if outbox.CodeOf(err) != outbox.ErrConfigInvalid.Code || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// A connection string for one queue names the queue; it may bring a signature instead of a key.
func TestTheConnectionStringNamesTheQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonPeer(t))
	p := connected(t, b.publisherAt(b.connection+";EntityPath="+b.topic, Options{}, Config{}))
	want(t, publish(t, t.Context(), p, message("whatever", ""))[0], taken)
	signature := (&sharedKey{"onward", "c2VjcmV0LW9mLW9ud2FyZA=="}).sign("amqp://"+b.peer.host+"/"+b.topic, time.Now().Add(time.Hour))
	signed := connected(t, b.publisherAt(b.peer.connection("SharedAccessSignature="+signature)+";EntityPath="+b.topic, Options{}, Config{}))
	want(t, publish(t, t.Context(), signed, message("whatever", ""))[0], taken)
	if got := p.Capabilities().MaxBytes; got < 200<<10 || got > 256<<10 {
		t.Errorf("MaxBytes is %d", got)
	}
	if got := b.publisher(Config{ScheduleHeader: "not-before", Wire: broker.WireConfig{Key: "{{or .Key .ID}}"}}).Describe(); got != `schedule_header=not-before key_template="{{or .Key .ID}}"` {
		t.Errorf("Describe: %s", got)
	}
}
