package cli

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/webhook"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
)

// openWebhook makes the publisher of an HTTP endpoint.
func openWebhook(s config.Sink) (broker.Publisher, error) {
	c := webhookConfig(s)
	if file := s.Webhook.CAFile; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "webhook.ca_file", Err: err}
		}
		c.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		if !c.TLS.RootCAs.AppendCertsFromPEM(text) {
			return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "webhook.ca_file", Detail: file + " has no certificate in PEM"}
		}
	}
	return webhook.NewPublisher(c)
}

func webhookConfig(s config.Sink) webhook.Config {
	return webhook.Config{
		URL: s.URL, Secrets: s.Webhook.Secrets, Authorization: s.Webhook.Authorization, Concurrency: s.Webhook.Concurrency,
		AllowNetworks: s.Webhook.Networks(), Timeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire(),
	}
}
