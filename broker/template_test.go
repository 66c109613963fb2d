package broker

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
)

func TestTemplatesNameTheFields(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                                "",
		"events":                                          "events",
		"{{.Topic}}":                                      "orders.paid",
		"{{.Key}}":                                        "order-ü",
		"shop.{{.Scope}}.{{.Topic}}":                      "shop.tenant.orders.paid",
		"{{.ID}}/{{.Type}}":                               "01020304-0506-7008-890a-0b0c0d0e0f10/OrderPaid",
		"{{.CorrelationID}}{{.CausationID}}":              "corrcause",
		"{{.AggregateType}}-{{.AggregateID}}":             "order-7",
		"{{.EventID}} {{.ContentType}}":                   "event application/json",
		"{{.Headers.zone}}":                               "eu",
		`{{index .Headers "zone"}}.{{.Topic}}`:            "eu.orders.paid",
		`{{index .Headers "x-none"}}`:                     "",
		`{{or (index .Headers "x-none") "eu"}}`:           "eu",
		`{{.Type | lower}}{{upper .Scope}}`:               "orderpaidTENANT",
		`{{.Topic | replace "." "-"}}`:                    "orders-paid",
		`{{if .Key}}k.{{$.Key}}{{else}}{{.ID}}{{end}}`:    "k.order-ü",
		`{{with .Headers}}{{.zone}}{{end}}`:               "eu",
		`{{range $n, $v := .Headers}}{{$n}}{{end}}`:       "X-Emptytraceparentzone",
		`{{$t := .Topic}}{{$t}}`:                          "orders.paid",
		`{{/* the first word */}}{{slice .Topic 0 6}}`:    "orders",
		`{{printf "%s-%s" .Type .Scope}}`:                 "OrderPaid-tenant",
		"{{- if eq .Scope \"tenant\" -}} a {{- end -}}\n": "a",
	} {
		tpl, err := ParseTemplate(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		e := envelope()
		if got, err := tpl.Expand(&e); err != nil || got != want {
			t.Errorf("%s is %q, want %q: %v", text, got, want, err)
		}
	}
}

func TestTemplatesAreRefusedAtStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{{.Payload}}":                                  "names .Payload, which a message does not have",
		"{{.topic}}":                                    "names .topic, which",
		"{{.Topic.Name}}":                               "names .Topic.Name, which",
		"{{.Headers.a.b}}":                              "names .Headers.a.b, which",
		"{{$.Nope}}":                                    "names .Nope, which",
		"{{if not .Key}}{{.Never}}{{end}}":              "names .Never, which", // not reached with the sample
		"{{with .Key}}{{else}}{{.Never}}{{end}}":        "names .Never, which",
		"{{range .Headers}}{{$.Never}}{{end}}":          "names .Never, which",
		"{{len (lower .Never)}}":                        "names .Never, which",
		"{{with .Key}}{{.Never}}{{end}}":                "fails for a sample message",
		"{{index .Topic 99}}":                           "fails for a sample message",
		`{{define "x"}}{{end}}{{.Topic}}`:               "defines another template",
		"{{.Topic":                                      "cannot be read",
		"{{.Topic}}{{\"\\n\"}}":                         "gives a name that has control characters",
		"{{.Topic}}{{\"\\xff\"}}":                       "gives a name that is not valid UTF-8",
		"{{.Topic}}" + strings.Repeat("x", maxName):     "the most is 1024",
		"{{printf \"%5000d\" 1}}{{if .Key}} {{end}}":    "the name is too long",
		"{{range $i, $c := .Key}}{{$c}}{{break}}{{en}}": "cannot be read",
	} {
		if _, err := ParseTemplate(text); !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", text, err, want)
		}
	}
	for _, c := range []WireConfig{{Topic: `{{""}}`}, {Topic: `{{if not .Key}}x{{end}}`}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "gives an empty name for a sample message") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// What is right for the sample and wrong for a message is that message's fault alone.
func TestTemplateRejectsTheMessageThatItFailsFor(t *testing.T) {
	t.Parallel()
	w := wire(t, WireConfig{Topic: "{{.Headers.region}}", Key: "{{.Key}}{{index .Headers `k`}}", RoutingKey: "{{slice .Key 0 2}}"}, StyleAMQP)
	for _, c := range []struct {
		region, key, header, want string
	}{
		{"eu", "key", "", ""},
		{"-", "key", "", "it fails for this message"}, // has no such header
		{"", "key", "", "it gives an empty name"},
		{"eu", "k", "", "it fails for this message"},
		{"eu", "key", "\x01", "control characters"},
		{"eu", "key", "\xff", "not valid UTF-8"},
		{"eu", "key", strings.Repeat("x", maxName), "the most is 1024"},
	} {
		e := envelope()
		e.Record.Key, e.Record.Headers = c.key, map[string]string{"region": c.region, "k": c.header}
		if c.region == "-" {
			delete(e.Record.Headers, "region")
		}
		var out Outgoing
		err := w.Encode(&e, &out)
		if c.want == "" {
			if err != nil || out.Topic != "eu" || out.Key != "key" || out.RoutingKey != "ke" {
				t.Errorf("got %+v: %v", out, err)
			}
			continue
		}
		if outbox.CodeOf(err) != CodeTemplateFailed || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if r := Refuse(err); r.Outcome != Rejected || r.Code != CodeTemplateFailed {
			t.Errorf("%+v is answered %+v", c, r)
		}
	}
}

// A template that is taken never panics and never gives what no broker takes; texts and fields alone give what the full
// language does.
func FuzzTemplate(f *testing.F) {
	f.Add("{{.Topic}}", "orders", "k", "eu")
	f.Add("a.{{.Scope}}{{.Headers.region}}", "orders", "", "x\x00")
	f.Add(`{{range $i, $h := .Headers}}{{$h}}{{end}}{{with .Key}}{{.}}{{end}}`, "t", "k", "\xff")
	f.Add(`{{- .Topic -}} x {{printf "%d" (len .Key)}}`, "t", "k", "v")
	f.Add(`{{slice .Key 0 1 | lower}}{{.Type}}-{{.ID}}`, "t", "", "v")
	f.Fuzz(func(t *testing.T, text, topic, key, header string) {
		if strings.Contains(text, "range") && strings.Count(text, "{{") > 8 || strings.Contains(text, "%") {
			return // long runs and wide formats are the owner's to see
		}
		tpl, err := ParseTemplate(text)
		if err != nil {
			if !errors.Is(err, outbox.ErrConfigInvalid) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		e := Envelope{Record: &outbox.Record{Message: outbox.Message{Topic: topic, Key: key, Type: "T", Headers: map[string]string{"region": header}}}}
		name, err := tpl.Expand(&e)
		switch {
		case err != nil && outbox.CodeOf(err) != CodeTemplateFailed:
			t.Errorf("%q: %v", text, err)
		case err == nil && len(tpl.parts) != 1 && (len(name) > maxName || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\r\n\x7f")):
			t.Errorf("%q gives %q", text, name)
		}
		if len(tpl.parts) > 0 && err == nil {
			slow := &Template{text: tpl.text, full: tpl.full}
			if full, err := slow.expand(&e.Record.Message); err != nil || full != name {
				t.Errorf("%q gives %q, and the long way %q: %v", text, name, full, err)
			}
		}
	})
}
