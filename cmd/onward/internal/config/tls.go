package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS is whom the relay trusts at a sink's address, and who it says that it is.
type TLS struct {
	CAFile   string `key:"ca_file" note:"certificates (PEM) of who is trusted, instead of those that the system trusts"`
	CertFile string `key:"cert_file" note:"the certificate (PEM) to show, where the server asks for one"`
	KeyFile  string `key:"key_file" note:"and its key"`
}

// SpeaksTLS reports whether the sink's address is reached by TLS: NATS where the server asks for it, or where there are settings of tls.
func (s *Sink) SpeaksTLS() bool {
	switch s.Scheme() {
	case "https", "rediss", "amqps", "nats":
		return true
	case "kafka":
		return s.Kafka.TLS
	}
	return false
}

// Config is what the settings come to, nil where there are none. The error is of one of the files, and the setting that names it.
func (t *TLS) Config() (c *tls.Config, setting string, err error) {
	if *t == (TLS{}) {
		return nil, "", nil
	}
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		if c.RootCAs, err = certificates(t.CAFile); err != nil {
			return nil, "ca_file", err
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, "cert_file", err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, "", nil
}

func certificates(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate that can be read", file)
	}
	return pool, nil
}

// tls checks what a sink says of TLS.
func (k *checker) tls(path string, s *Sink) {
	t := &s.TLS
	path += ".tls"
	k.that(*t == (TLS{}) || s.URL == "" || s.SpeaksTLS(), path, "goes with https:, rediss:, amqps:, nats:, or kafka: with kafka.tls: true")
	pair := (t.CertFile == "") == (t.KeyFile == "")
	k.that(pair, path+".key_file", "and cert_file go together")
	if k.need < NeedRelay || !pair {
		return
	}
	if _, setting, err := t.Config(); err != nil {
		k.that(false, path+"."+setting, "%v", err)
	}
}
