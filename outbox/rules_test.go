package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onwardhq/onward/outbox"
)

// texts are the message's own, by the names that errors give them.
func texts(m *outbox.Message) map[string]struct {
	at    *string
	limit int
} {
	return map[string]struct {
		at    *string
		limit int
	}{
		"topic": {&m.Topic, 255}, "type": {&m.Type, 500}, "key": {&m.Key, 255}, "scope": {&m.Scope, 64}, "content type": {&m.ContentType, 255},
		"correlation id": {&m.CorrelationID, 255}, "causation id": {&m.CausationID, 255}, "aggregate type": {&m.AggregateType, 255},
		"aggregate id": {&m.AggregateID, 255}, "event id": {&m.EventID, 255},
	}
}

func message() outbox.Message { return outbox.Message{Topic: "orders", Type: "OrderPaid"} }

// refused holds an error to its code, to the message it names, to words of its detail, and to a hint.
func refused(t *testing.T, what string, err error, want *outbox.Error, words ...string) {
	t.Helper()
	e := (*outbox.Error)(nil)
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Errorf("%s: %v, want %s", what, err, want.Code)
		return
	}
	if !strings.HasPrefix(e.Op, "write message (topic ") || !strings.Contains(e.Op, ", type ") || e.Hint == "" {
		t.Errorf("%s: op %q, hint %q: want the message's topic and type, and what to do", what, e.Op, e.Hint)
	}
	for _, w := range words {
		if !strings.Contains(e.Detail, w) {
			t.Errorf("%s: detail %q, want %q", what, e.Detail, w)
		}
	}
}

func TestEachTextHasItsLimitInBytes(t *testing.T) {
	t.Parallel()
	m := message()
	for name, f := range texts(&m) {
		for _, c := range []struct {
			text string
			good bool
		}{
			{strings.Repeat("x", f.limit), true},
			{strings.Repeat("x", f.limit+1), false},
			{strings.Repeat("ü", f.limit/2), true},
			{strings.Repeat("ü", f.limit/2+1), false}, // fewer characters than the limit, and more bytes
		} {
			m = message()
			*f.at = c.text
			got, err := outbox.Rules{}.Prepare(t.Context(), m)
			switch {
			case c.good && (err != nil || *texts(&got)[name].at != c.text):
				t.Errorf("%s of %d bytes: %v", name, len(c.text), err)
			case !c.good:
				refused(t, name, err, outbox.ErrFieldTooLong, fmt.Sprintf("%s has %d bytes, the limit is %d", name, len(c.text), f.limit))
			}
		}
	}
}

func TestNoTextHasControlCharacters(t *testing.T) {
	t.Parallel()
	m := message()
	for name, f := range texts(&m) {
		for c := rune(0); c <= 0x100; c++ {
			m = message()
			*f.at = "a" + string(c) + "b"
			_, err := outbox.Rules{}.Prepare(t.Context(), m)
			if c >= 0x20 && c != 0x7f {
				if err != nil {
					t.Errorf("%s with %U: %v", name, c, err)
				}
				continue
			}
			refused(t, fmt.Sprintf("%s with %U", name, c), err, outbox.ErrFieldInvalid, name+" has control characters")
		}
		for _, text := range []string{"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"} {
			m = message()
			*f.at = text
			_, err := outbox.Rules{}.Prepare(t.Context(), m)
			refused(t, fmt.Sprintf("%s %q", name, text), err, outbox.ErrFieldInvalid, name)
		}
	}
}

func TestWhatIsRequired(t *testing.T) {
	t.Parallel()
	_, err := outbox.Rules{}.Prepare(t.Context(), outbox.Message{Type: "t"})
	refused(t, "no topic", err, outbox.ErrTopicRequired)
	_, err = outbox.Rules{}.Prepare(t.Context(), outbox.Message{Topic: "t"})
	refused(t, "no type", err, outbox.ErrTypeRequired)
}

func TestRequireKeyNamesTheMessageAndTheCure(t *testing.T) {
	t.Parallel()
	r := outbox.Rules{RequireKey: []outbox.Pattern{"audit.*", "orders.>"}}
	_, err := r.Prepare(t.Context(), outbox.Message{Topic: "orders.paid", Type: "OrderPaid"})
	refused(t, "no key", err, outbox.ErrKeyRequired)
	if !strings.Contains(err.Error(), `topic "orders.paid", type "OrderPaid"`) || !strings.Contains(outbox.Hint(err), `Message{Topic: "orders.paid", Key: order.ID`) {
		t.Errorf("%v, hint %q", err, outbox.Hint(err))
	}
	for _, m := range []outbox.Message{{Topic: "orders.paid", Type: "t", Key: "7"}, {Topic: "orders", Type: "t"}, {Topic: "audit.a.b", Type: "t"}} {
		if _, err := r.Prepare(t.Context(), m); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func TestPayloadLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, limit int }{{0, 1 << 20}, {100, 100}, {1 << 20, 1 << 20}} {
		r, m := outbox.Rules{MaxPayload: c.rule}, message()
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
		for _, n := range []int{0, c.limit} {
			m.Payload = make([]byte, n)
			if _, err := r.Prepare(t.Context(), m); err != nil {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		m.Payload = make([]byte, c.limit+1)
		_, err := r.Prepare(t.Context(), m)
		refused(t, "payload", err, outbox.ErrPayloadTooLarge, fmt.Sprintf("%d bytes, the limit is %d", c.limit+1, c.limit))
	}
}

func TestHeadersLimitIsTheSumOfNamesAndValues(t *testing.T) {
	t.Parallel()
	m := message()
	m.Headers = map[string]string{"ab": strings.Repeat("ü", 2000), "cde": strings.Repeat("x", 8<<10-4005)}
	if _, err := (outbox.Rules{}).Prepare(t.Context(), m); err != nil {
		t.Errorf("8192 bytes: %v", err)
	}
	m.Headers["f"] = ""
	_, err := outbox.Rules{}.Prepare(t.Context(), m)
	refused(t, "8193 bytes", err, outbox.ErrHeadersTooLarge, "8193 bytes, the limit is 8192")
}

func TestHeaderNames(t *testing.T) {
	t.Parallel()
	prepare := func(name string) error {
		m := message()
		m.Headers = map[string]string{name: "v"}
		_, err := outbox.Rules{}.Prepare(t.Context(), m)
		return err
	}
	for _, name := range []string{
		"a", "traceparent", "X-Tenant", "a!#$%&'*+.^_|~-9Z", strings.Repeat("n", 128), "onward", "ce", "nats", "webhook", "cloudevent",
		"content-types", "content", "x-content-type", "content-encoding", "my-nats-header",
	} {
		if err := prepare(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("n", 129), "a b", "a:b", "ü", "a\n", "a\x00", "\x7f", "\xff", "a/b", "(a)"} {
		refused(t, fmt.Sprintf("%q", name), prepare(name), outbox.ErrHeaderInvalid, "header name")
	}
	for _, name := range []string{
		"onward-id", "Onward-X", "ONWARD-", "ce-id", "Ce-Type", "ce_id", "CE_x", "cloudevents", "cloudEvents_id", "CloudEvents",
		"Nats-Rollup", "nats-msg-id", "NATS-Expected-Stream", "webhook-id", "Webhook-Signature", "content-type", "Content-Type",
	} {
		refused(t, name, prepare(name), outbox.ErrHeaderReserved, name)
	}
	if hint := outbox.Hint(prepare("Content-Type")); !strings.Contains(hint, "Message.ContentType") {
		t.Errorf("hint %q: want the field that says it", hint)
	}
}

func TestHeaderValues(t *testing.T) {
	t.Parallel()
	for c := rune(0); c <= 0x100; c++ {
		m := message()
		m.Headers = map[string]string{"h": "a" + string(c) + "b"}
		_, err := outbox.Rules{}.Prepare(t.Context(), m)
		if c == '\t' || c >= 0x20 && c != 0x7f {
			if err != nil {
				t.Errorf("%U: %v", c, err)
			}
			continue
		}
		refused(t, fmt.Sprintf("%U", c), err, outbox.ErrHeaderInvalid, "header h")
	}
	m := message()
	m.Headers = map[string]string{"h": "\xff"}
	_, err := outbox.Rules{}.Prepare(t.Context(), m)
	refused(t, "not UTF-8", err, outbox.ErrHeaderInvalid, "header h")
}

func TestPrepareFillsInWhatIsMissing(t *testing.T) {
	t.Parallel()
	m := message()
	one, err := outbox.Rules{}.Prepare(t.Context(), m)
	two, _ := outbox.Rules{}.Prepare(t.Context(), m)
	if err != nil || one.ID.IsZero() || one.ID == two.ID || one.ID[6]>>4 != 7 || one.ContentType != "application/octet-stream" {
		t.Errorf("%+v, %v: want an id of its own and the default content type", one, err)
	}
	m.ID, m.ContentType = outbox.NewID(), "application/json"
	if got, err := (outbox.Rules{}).Prepare(t.Context(), m); err != nil || got.ID != m.ID || got.ContentType != m.ContentType {
		t.Errorf("%+v, %v: want what the caller set", got, err)
	}
}

func TestEnrichWorksOnACopyAndIsChecked(t *testing.T) {
	t.Parallel()
	type tenant struct{}
	r := outbox.Rules{Enrich: func(ctx context.Context, m *outbox.Message) {
		m.CorrelationID, _ = ctx.Value(tenant{}).(string)
		m.Headers["added"] = "x"
	}}
	ctx := context.WithValue(t.Context(), tenant{}, "c-1")
	for _, headers := range []map[string]string{nil, {}, {"mine": "y"}} {
		m, before := message(), maps.Clone(headers)
		m.Headers = headers
		got, err := r.Prepare(ctx, m)
		if err != nil || got.CorrelationID != "c-1" || got.Headers["added"] != "x" || len(got.Headers) != len(before)+1 {
			t.Errorf("%v: %+v, %v", before, got, err)
		}
		if !maps.Equal(headers, before) || m.CorrelationID != "" {
			t.Errorf("%v became %v: the caller's message changed", before, headers)
		}
	}
	_, err := r.Prepare(context.WithValue(t.Context(), tenant{}, "c\n1"), message())
	refused(t, "enriched with a line break", err, outbox.ErrFieldInvalid, "correlation id")
}

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	for _, most := range []int{-1, 1<<20 + 1} {
		err := outbox.Rules{RequireKey: []outbox.Pattern{"ok", "a..b", "c>"}, MaxPayload: most}.Validate()
		if !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Fatalf("%v", err)
		}
		for _, w := range []string{`"a..b"`, `"c>"`, fmt.Sprintf("MaxPayload is %d", most)} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %s", err, w)
			}
		}
	}
	if err := (outbox.Rules{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

// FuzzPrepare: whatever is accepted is within the limits and can be a header line; whatever is not has a code and a hint.
func FuzzPrepare(f *testing.F) {
	f.Add("orders", "OrderPaid", "7", "application/json", "name", "value")
	f.Add("", "", "", "", "", "")
	f.Add("t", "t", "\x00", "a\r\nb", "Nats-Rollup", "all")
	f.Add(strings.Repeat("t", 256), "\xff", strings.Repeat("ü", 128), "\x7f", "content-TYPE", "\t")
	f.Fuzz(func(t *testing.T, topic, kind, key, contentType, name, value string) {
		m := outbox.Message{Topic: topic, Type: kind, Key: key, ContentType: contentType, Headers: map[string]string{name: value}}
		got, err := outbox.Rules{}.Prepare(t.Context(), m)
		if err != nil {
			if outbox.CodeOf(err) == "" || outbox.Hint(err) == "" || len(err.Error()) > 1000 {
				t.Errorf("%v, hint %q", err, outbox.Hint(err))
			}
			return
		}
		for what, f := range texts(&got) {
			if len(*f.at) > f.limit || !utf8.ValidString(*f.at) || strings.ContainsFunc(*f.at, func(c rune) bool { return c < 0x20 || c == 0x7f }) {
				t.Errorf("%s %q was accepted", what, *f.at)
			}
		}
		if line := name + value; len(line) > 8<<10 || strings.ContainsAny(line, "\r\n\x00") || strings.EqualFold(name, "content-type") {
			t.Errorf("header %q: %q was accepted", name, value)
		}
	})
}

func TestAvailableAtIsRoundedUpToTheMicrosecondInUTC(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("east", 3600)
	for _, c := range []struct{ at, want time.Time }{
		{time.Time{}, time.Time{}},
		{time.Date(2031, 2, 3, 4, 5, 6, 7001, east), time.Date(2031, 2, 3, 3, 5, 6, 8000, time.UTC)},
		{time.Date(2031, 2, 3, 4, 5, 6, 7000, time.UTC), time.Date(2031, 2, 3, 4, 5, 6, 7000, time.UTC)},
		{time.Date(1, 1, 1, 0, 0, 0, 1, east), time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC)},
		{time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)},
	} {
		m := message()
		m.AvailableAt = c.at
		if got, err := (outbox.Rules{}).Prepare(t.Context(), m); err != nil || !got.AvailableAt.Equal(c.want) || got.AvailableAt.Location() != time.UTC {
			t.Errorf("%v became %v, %v, want %v", c.at, got.AvailableAt, err, c.want)
		}
	}
	m := message()
	m.AvailableAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_001, time.UTC)
	_, err := outbox.Rules{}.Prepare(t.Context(), m)
	refused(t, "year 10000", err, outbox.ErrFieldInvalid, "year 10000")
}
