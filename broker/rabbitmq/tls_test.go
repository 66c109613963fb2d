package rabbitmq

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withTLS makes a certificate of its own authority, and the settings of a node that has it.
func withTLS(tb testing.TB, port int) (authority string, settings []string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			tb.Fatal(err)
		}
		return file
	}
	authority = write("certificate.pem", "CERTIFICATE", certificate)
	return authority, []string{
		fmt.Sprintf("listeners.ssl.1 = 127.0.0.1:%d", port),
		"ssl_options.cacertfile = " + authority, "ssl_options.certfile = " + authority, "ssl_options.keyfile = " + write("key.pem", "PRIVATE KEY", private),
		"ssl_options.verify = verify_none", "ssl_options.fail_if_no_peer_cert = false",
	}
}

// The address's own parameter names the authority; without it the node's certificate is nobody's.
func publishesWithTLS(t *testing.T, n *node, port int, authority string) {
	t.Helper()
	b := newBench(t, n.url())
	address := fmt.Sprintf("amqps://onward:onward@127.0.0.1:%d/", port)
	p := connected(t, b.publisherAt(address+"?cacertfile="+url.QueryEscape(authority), Config{}))
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	stranger := b.publisherAt(address, Config{})
	until(t, "a certificate of an unknown authority is refused", func() bool {
		err := stranger.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "certificate signed by unknown authority")
	})
	want(t, publish(t, t.Context(), stranger, message(b.topic, ""))[0], notConnected)
}
