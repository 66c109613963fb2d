package webhook

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/onwardhq/onward/doctor"
)

// What an endpoint does with a message nobody can read; what can be known is whether the way there is safe, and signed.
func TestTheVerdictOfAnEndpointGoesByTheWayThere(t *testing.T) {
	t.Parallel()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))
	for _, c := range []struct {
		config                 Config
		https, signed, verdict doctor.Severity
	}{
		{Config{URL: "https://example.com/in", Secrets: []string{secret}}, doctor.OK, doctor.OK, doctor.Note},
		{Config{URL: "http://example.com/in", Secrets: []string{secret}}, doctor.Warning, doctor.OK, doctor.Warning},
		{Config{URL: "https://example.com/in"}, doctor.OK, doctor.Warning, doctor.Warning},
	} {
		p, err := NewPublisher(c.config)
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Examine(t.Context(), doctor.Question{})
		if err != nil || d.Verdict() != c.verdict || !strings.Contains(d.Worth, "2xx") {
			t.Errorf("%s: %v, %q, %v", c.config.URL, d.Verdict(), d.Worth, err)
		}
		for _, f := range d.Findings {
			if want := map[string]doctor.Severity{"webhook-https": c.https, "webhook-secret": c.signed, "webhook-endpoint": doctor.Note}[f.Check]; f.Severity != want || strings.Contains(f.Read+f.Means+f.Fix, secret) {
				t.Errorf("%s: %+v, want %v", c.config.URL, f, want)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
