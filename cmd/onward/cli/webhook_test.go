package cli

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/store/sqlite"
)

// posted is a request that an endpoint was sent.
type posted struct {
	header http.Header
	body   string
}

// An HTTPS endpoint with a certificate of its own, on an address that is not public: what lets the relay post there, and what
// it posts.
func TestARelayPostsToAnEndpoint(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var all []posted
	status := http.StatusServiceUnavailable // an outage first: it costs no message an attempt
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, posted{r.Header, string(body)})
		w.WriteHeader(status)
	}))
	defer endpoint.Close()
	folder := t.TempDir()
	file, ca, secret := filepath.Join(folder, "orders.db"), filepath.Join(folder, "ca.pem"), filepath.Join(folder, "secret")
	const first, second = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	for name, text := range map[string]string{
		ca:     string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})),
		secret: first + "," + second + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_DATABASE__AUTO_MIGRATE=true", "ONWARD_SINKS__0__NAME=hook", "ONWARD_SINKS__0__URL=" + endpoint.URL + "/hook?token=hidden",
		"ONWARD_SINKS__0__BREAKER__FIRST=20ms", "ONWARD_SINKS__0__BREAKER__MAX=20ms", "ONWARD_SINKS__0__RETRY__ATTEMPTS=2",
		"ONWARD_SINKS__0__TLS__CA_FILE=" + ca, "ONWARD_SINKS__0__WEBHOOK__ALLOW_NETWORKS=10.0.0.0/8,127.0.0.0/8",
		"ONWARD_SINKS__0__WEBHOOK__AUTHORIZATION=Bearer hidden", "ONWARD_SINKS__0__WEBHOOK__SECRETS_FILE=" + secret, "ONWARD_SINKS__0__WEBHOOK__CONCURRENCY=3",
	}}
	relay := c.start(t, "relay")
	eventually(t, "the tables are made", func() bool { return c.run(t, "status").code == exitDone })
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload, content_type) VALUES ('orders', 'k', 'T', '{"a": 1}', 'application/json')`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was refused more often than there are attempts", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if len(all) >= 7 { // the breaker opened at five
			status = http.StatusOK
		}
		return status == http.StatusOK
	})
	eventually(t, "it is published", func() bool { return strings.Contains(c.run(t, "status", "-o", "json").out, `"published": 1`) })
	if code := relay.end(t); code != exitDone || strings.Contains(relay.said(), "hidden") {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	mu.Lock()
	defer mu.Unlock()
	last := all[len(all)-1]
	h := last.header
	if last.body != `{"a": 1}` || h.Get("onward-key") != "k" || h.Get("content-type") != "application/json" || h.Get("authorization") != "Bearer hidden" ||
		h.Get("webhook-id") != h.Get("onward-id") || len(strings.Fields(h.Get("webhook-signature"))) != 2 {
		t.Errorf("the request is %+v", last)
	}
	for _, one := range all {
		if one.header.Get("webhook-id") != h.Get("webhook-id") {
			t.Errorf("a repeated message has another id: %v", one.header)
		}
	}
}

func TestSettingsOfAnEndpoint(t *testing.T) {
	t.Parallel()
	base := []string{"database.url=sqlite:x", "sinks[0].name=s", "sinks[0].url=https://example.com/hook"}
	c, err := config.Load(config.Source{Need: config.NeedRelay, Set: append(base, "sinks[0].webhook.concurrency=7", "sinks[0].publish_timeout=7s", "sinks[0].format=cloudevents-binary", "sinks[0].source=/s")})
	if err != nil {
		t.Fatal(err)
	}
	if got := webhookConfig(c.Sinks[0]); got.Concurrency != 7 || got.Timeout.Seconds() != 7 || got.Wire.Source != "/s" || got.AllowNetworks != nil {
		t.Errorf("got %+v", got)
	}
	for what, set := range map[string]string{
		`sinks[0].webhook.secrets: number 2: webhook secret: does not begin`: "sinks[0].webhook.secrets=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw,hidden",
		"sinks[0].webhook.concurrency: is 0":                                 "sinks[0].webhook.concurrency=0",
		`"10.0.0.1" is not a network`:                                        "sinks[0].webhook.allow_networks=10.0.0.1",
		"sinks[0].topic_template: is not for https: it has no names":         "sinks[0].topic_template=x",
		"has a fragment": "sinks[0].url=https://h/#hidden",
		"names no host":  "sinks[0].url=http:///x",
	} {
		_, err := config.Load(config.Source{Need: config.NeedRelay, Set: append(base, set)})
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, want %s", set, err, what)
		}
	}
	for what, file := range map[string]string{"no such file": filepath.Join(t.TempDir(), "none"), "has no certificate": "webhook_test.go"} {
		s := c.Sinks[0]
		s.TLS.CAFile = file
		if p, err := openPublisher(s); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", file, err)
			_ = p.Close(context.Background())
		}
	}
}
