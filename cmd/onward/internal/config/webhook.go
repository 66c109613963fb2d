package config

import (
	"net/netip"

	"github.com/onwardhq/onward/broker/webhook"
)

// Webhook is what only an HTTP endpoint needs.
type Webhook struct {
	Secrets       Words  `key:"secrets" secret:"true" note:"sign each request as Standard Webhooks has it: whsec_ and 24 to 64 bytes in base64; several while they are changed, each signs"`
	Authorization string `key:"authorization" secret:"true" note:"the header of that name, such as Bearer and a token"`
	Concurrency   int    `key:"concurrency" default:"16" note:"requests on their way at once, of this relay"`
	AllowNetworks Words  `key:"allow_networks" note:"networks such as 10.1.0.0/16 to which it may connect although they are not public"`
}

// Networks are AllowNetworks; of invalid ones there is nothing.
func (w *Webhook) Networks() (all []netip.Prefix) {
	for _, text := range w.AllowNetworks {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// webhook refuses what only an HTTP endpoint has.
func (k *checker) webhook(path string, w *Webhook) {
	for i, secret := range w.Secrets {
		err := webhook.CheckSecret(secret)
		k.that(err == nil, path+".secrets", "number %d: %v", i+1, err)
	}
	k.that(w.Concurrency >= 1 && w.Concurrency <= 1000, path+".concurrency", "is %d: want 1 to 1000", w.Concurrency)
	for _, text := range w.AllowNetworks {
		_, err := netip.ParsePrefix(text)
		k.that(err == nil, path+".allow_networks", "%q is not a network: write 10.1.0.0/16, or 10.1.2.3/32 for one address", text)
	}
}
