package cli

import (
	"crypto/tls"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/webhook"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// openWebhook makes the publisher of an HTTP endpoint.
func openWebhook(s config.Sink, t *tls.Config) (broker.Publisher, error) {
	c := webhookConfig(s)
	c.TLS = t
	return webhook.NewPublisher(c)
}

func webhookConfig(s config.Sink) webhook.Config {
	return webhook.Config{
		URL: s.URL, Secrets: s.Webhook.Secrets, Authorization: s.Webhook.Authorization, Concurrency: s.Webhook.Concurrency,
		AllowNetworks: s.Webhook.Networks(), Timeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire(),
	}
}
