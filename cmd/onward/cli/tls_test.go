package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/store/sqlite"
)

// writeCertificates makes an authority (ca.pem) and a certificate of it for this machine and its users (cert.pem, key.pem).
func writeCertificates(t *testing.T, dir string) {
	t.Helper()
	var parent *x509.Certificate
	var signer *ecdsa.PrivateKey
	for i, name := range []string{"ca", "cert"} {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			IsCA: parent == nil, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			KeyUsage:    x509.KeyUsageDigitalSignature,
		}
		if parent == nil {
			parent, signer, c.KeyUsage, c.ExtKeyUsage = c, private, x509.KeyUsageCertSign, nil
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &private.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		bytes, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name+".pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
		write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes})))
	}
}

// secured is a server that shows a certificate of the authority in a folder, and wants to see one.
type secured struct {
	start   func(t *testing.T, dir string, port int) (url string)
	prepare func(ctx context.Context, url string, trust *tls.Config) error // what takes messages with the topic safe
	environ []string
}

var securedServers = map[string]secured{
	"nats": {func(t *testing.T, dir string, port int) string {
		text := fmt.Sprintf("listen: 127.0.0.1:%d\njetstream { store_dir: %q }\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n",
			port, dir, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem"))
		write(t, filepath.Join(dir, "nats.conf"), text)
		runServer(t, "ONWARD_TEST_NATS_SERVER", "nats", "-c", filepath.Join(dir, "nats.conf"))
		return fmt.Sprintf("nats://127.0.0.1:%d", port)
	}, func(ctx context.Context, url string, trust *tls.Config) error {
		nc, err := natsgo.Connect(url, natsgo.Secure(trust))
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "SAFE", Subjects: []string{"safe"}})
		return err
	}, []string{"ONWARD_SINKS__0__NATS__STREAM=SAFE"}},
	"redis": {func(t *testing.T, dir string, port int) string {
		runServer(t, "ONWARD_TEST_REDIS_SERVER", "redis", "--bind", "127.0.0.1", "--port", "0", "--tls-port", strconv.Itoa(port), "--dir", dir, "--save", "",
			"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem"), "--tls-ca-cert-file", filepath.Join(dir, "ca.pem"))
		return fmt.Sprintf("rediss://127.0.0.1:%d", port)
	}, func(ctx context.Context, url string, trust *tls.Config) error {
		o, err := goredis.ParseURL(url)
		if err != nil {
			return err
		}
		o.TLSConfig = trust
		client := goredis.NewClient(o)
		defer func() { _ = client.Close() }()
		return client.Ping(ctx).Err()
	}, nil},
	"rabbitmq": {func(t *testing.T, dir string, port int) string {
		runServer(t, "ONWARD_TEST_RABBITMQ_SERVER", "rabbitmq", "run", dir, strconv.Itoa(freePort(t)),
			fmt.Sprintf("listeners.ssl.1 = 127.0.0.1:%d", port), "ssl_options.cacertfile = "+filepath.Join(dir, "ca.pem"), "ssl_options.certfile = "+filepath.Join(dir, "cert.pem"),
			"ssl_options.keyfile = "+filepath.Join(dir, "key.pem"), "ssl_options.verify = verify_peer", "ssl_options.fail_if_no_peer_cert = true")
		return fmt.Sprintf("amqps://onward:onward@127.0.0.1:%d/", port)
	}, func(_ context.Context, url string, trust *tls.Config) error {
		conn, err := amqp.DialTLS(url, trust)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		channel, err := conn.Channel()
		if err != nil {
			return err
		}
		_, err = channel.QueueDeclare("safe", true, false, false, false, nil)
		return err
	}, nil},
}

// freePort is one on which nothing listens now, below the range of outgoing connections.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 20000 + mathrand.IntN(12000) //nolint:gosec // any will do
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// runServer runs a server until the test ends.
func runServer(t *testing.T, variable, service string, args ...string) {
	t.Helper()
	program := os.Getenv(variable)
	if program == "" {
		t.Skipf(`%s is not set: start the server with: dev/services up %s && eval "$(dev/services env)"`, variable, service)
	}
	cmd := exec.Command(program, args...) //nolint:gosec // the test's own server
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var said lines
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
}

// A server whose certificate is of an authority of the house, and which wants to see one of ours: the relay publishes with the files of
// tls, and with fewer of them it does not and says why.
func TestASinkTrustsWhomItsSettingsName(t *testing.T) {
	t.Parallel()
	for name, server := range securedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, port := t.TempDir(), freePort(t)
			writeCertificates(t, dir)
			url := server.start(t, dir, port)
			file := filepath.Join(t.TempDir(), "shop.db")
			db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if err := sqlite.Migrate(t.Context(), db, sqlite.MigrateConfig{}); err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, type, payload) VALUES ('safe', 'T', 'hello')`); err != nil {
				t.Fatal(err)
			}
			files := config.TLS{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
			trust, _, err := files.Config()
			if err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C { // RabbitMQ takes its time on a busy machine
				if err := server.prepare(t.Context(), url, trust); err == nil {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("the server does not come: %v", err)
				}
			}
			c := console{environ: append([]string{
				"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_SINKS__0__NAME=safe", "ONWARD_SINKS__0__URL=" + url, "ONWARD_SINKS__0__PUBLISH_TIMEOUT=300ms",
				"ONWARD_SINKS__0__BREAKER__FIRST=50ms", "ONWARD_SINKS__0__BREAKER__MAX=2s",
			}, server.environ...)}
			ca, cert, key := "sinks[0].tls.ca_file="+files.CAFile, "sinks[0].tls.cert_file="+files.CertFile, "sinks[0].tls.key_file="+files.KeyFile
			if r := c.run(t, "relay", "--once"); r.code != exitUnreachable || !strings.Contains(r.err, "x509: certificate signed by unknown authority") {
				t.Errorf("nobody trusts that server: %+v", r)
			}
			if r := c.run(t, "relay", "--once", "--set", ca); r.code != exitUnreachable || strings.Contains(r.err, "x509") { // servers end it in words of their own, or without
				t.Errorf("the server has seen no certificate of ours: %+v", r)
			}
			r := c.run(t, "relay", "--once", "--set", ca, "--set", cert, "--set", key, "--set", "sinks[0].publish_timeout=10s")
			if status := c.run(t, "status", "-o", "json"); r.code != exitDone || !strings.Contains(status.out, `"published": 1`) {
				t.Errorf("%+v, %s", r, status.out)
			}
		})
	}
}
