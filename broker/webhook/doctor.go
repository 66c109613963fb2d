package webhook

import (
	"context"

	"github.com/onwardhq/onward/doctor"
)

var _ doctor.Examiner = (*Publisher)(nil)

// Examine looks at this side's settings: an endpoint says nothing of what it does with what it has taken. It sends nothing.
func (p *Publisher) Examine(context.Context, doctor.Question) (doctor.Diagnosis, error) {
	d := doctor.Diagnosis{Server: "HTTP endpoint", Worth: "what the endpoint makes of its 2xx: nobody but its operator can say whether it has stored the message before"}
	if p.url.Scheme == "https" {
		d.Add(doctor.Finding{Check: "webhook-https", Severity: doctor.OK, Read: "url = https://..."})
	} else {
		d.Add(doctor.Finding{
			Check: "webhook-https", Severity: doctor.Warning, Read: "url = http://...",
			Means: "anybody on the way can read messages, change them and answer for the endpoint: then they are lost", Fix: "write the url with https://",
		})
	}
	switch {
	case len(p.keys) > 0:
		d.Add(doctor.Finding{Check: "webhook-secret", Severity: doctor.OK, Read: "requests are signed"})
	default:
		d.Add(doctor.Finding{
			Check: "webhook-secret", Severity: doctor.Warning, Read: "webhook.secrets is empty: requests are not signed",
			Means: "the endpoint cannot tell a message from a forgery", Fix: "set webhook.secrets to whsec_ and what `openssl rand -base64 32` says, on both sides",
		})
	}
	d.Add(doctor.Finding{
		Check: "webhook-endpoint", Severity: doctor.Note, Read: "an endpoint's settings cannot be read",
		Means: "an acknowledgement is any 2xx: it is worth what the endpoint has done by then", Fix: "have the endpoint answer 2xx after it has stored the message, and drop a webhook-id that it has",
	})
	return d, nil
}
