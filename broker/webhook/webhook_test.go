package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

const (
	specSecret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherSecret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// The vector of the Standard Webhooks specification and of its libraries.
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Parallel()
	k, err := parseSecret(specSecret)
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := sign([]key{k}, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// verify is what a receiver does with one secret.
func verify(h http.Header, body []byte, secret string) error {
	k, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return fmt.Errorf("timestamp %q: %w", h.Get("webhook-timestamp"), err)
	}
	mac := hmac.New(sha256.New, k)
	_, _ = fmt.Fprintf(mac, "%s.%d.%s", h.Get("webhook-id"), at, body)
	for _, one := range strings.Fields(h.Get("webhook-signature")) {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, "v1,"))
		if err == nil && hmac.Equal(sum, mac.Sum(nil)) {
			return nil
		}
	}
	return fmt.Errorf("no signature of %q is by this secret", h.Get("webhook-signature"))
}

// While secrets are changed a receiver knows one of them; what is signed is what goes out, in each format.
func TestReceiversKnowTheOldSecretOrTheNewOne(t *testing.T) {
	t.Parallel()
	for _, c := range []broker.WireConfig{{}, {Format: broker.FormatBinary, Source: "/s"}, {Format: broker.FormatStructured, Source: "/s"}} {
		e := newEndpoint(t, false, nil)
		p := e.publisher(Config{Secrets: []string{otherSecret, specSecret}, Wire: c, Authorization: "Bearer token"})
		m := message("k")
		want(t, publish(t, p, m)[0], taken)
		h := http.Header{}
		for _, one := range e.first().Headers {
			h.Add(one.Name, one.Value)
		}
		for _, secret := range []string{specSecret, otherSecret} {
			if err := verify(h, e.first().Payload, secret); err != nil {
				t.Errorf("%s: %v", c.Format, err)
			}
		}
		if err := verify(h, append(e.first().Payload, ' '), specSecret); err == nil {
			t.Error("another body is taken")
		}
		if n := len(strings.Fields(h.Get("webhook-signature"))); n != 2 || h.Get("webhook-id") != m.ID.String() || h.Get("authorization") != "Bearer token" {
			t.Errorf("the headers are %v", h)
		}
	}
}

func TestWithoutSecretsNothingIsSigned(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, false, nil)
	want(t, publish(t, e.publisher(Config{}), message(""))[0], taken)
	if m := e.first(); m.Value("webhook-signature") != "" || m.Value("webhook-timestamp") != "" || m.Value("webhook-id") == "" || m.Value("authorization") != "" {
		t.Errorf("the headers are %v", m.Headers)
	}
}

func TestSettingsAreRefusedAllAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		c    Config
		want []string
	}{
		{Config{URL: "https://example.com/hook?token=1"}, nil},
		{Config{}, []string{"URL is missing"}},
		{Config{URL: "ftp://h/x"}, []string{"URL is neither https:// nor http://"}},
		{Config{URL: "https:///x"}, []string{"URL names no host"}},
		{Config{URL: "https://h/#f"}, []string{"URL has a fragment"}},
		{Config{URL: "https://u:p%zz@h/"}, []string{"URL cannot be read"}},
		{
			Config{
				URL: "https://u:hidden@h/", Authorization: "x", Concurrency: 1001, Timeout: time.Millisecond, AllowNetworks: []netip.Prefix{{}},
				Secrets: []string{specSecret, "hidden", "whsec_hidden!", "whsec_c2hvcnQ="}, Wire: broker.WireConfig{Format: "x", Topic: "y"},
			},
			[]string{
				"Authorization stands beside a user", "Secrets[1] does not begin with whsec_", "Secrets[2] is not base64", "Secrets[3] has 5 bytes: want 24 to 64",
				"Concurrency is 1001", "Timeout is 1ms", "AllowNetworks has an invalid network", `format "x" is not one of`, "an endpoint has one URL",
			},
		},
		{Config{URL: "https://h/", Authorization: "a\nb"}, []string{"Authorization has a line break"}},
	} {
		err := c.c.Validate()
		if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%+v: %v", c.c, err)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v\nwant %s, and no secret", err, want)
			}
		}
		if _, err := NewPublisher(c.c); (err == nil) != (c.want == nil) {
			t.Errorf("%+v: NewPublisher says %v", c.c, err)
		}
		if err := CheckURL(c.c.URL); (err == nil) != (len(c.want) == 0 || !strings.HasPrefix(c.want[0], "URL")) {
			t.Errorf("%s: CheckURL says %v", c.c.URL, err)
		}
	}
}

func TestRetryAfterInBothForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		after, date string
		want        time.Duration
	}{
		{"120", "", 2 * time.Minute},
		{"0", "", 0},
		{"Sun, 01 Mar 2026 12:00:30 GMT", "", 30 * time.Second},
		{"Sunday, 01-Mar-26 12:00:30 GMT", "", 30 * time.Second},                             // RFC 850
		{"Sun Mar  1 12:00:30 2026", "", 30 * time.Second},                                   // asctime
		{"Sun, 01 Mar 2026 12:00:30 GMT", "Sun, 01 Mar 2026 12:00:20 GMT", 10 * time.Second}, // its clock is ahead
		{"Sun, 01 Mar 2026 12:00:30 GMT", "nonsense", 30 * time.Second},
		{"Sun, 01 Mar 2026 11:00:00 GMT", "", 0},
		{"Sun, 01 Mar 2099 11:00:00 GMT", "", time.Hour},
		{"7200", "", time.Hour},
		{"18446744073709551615", "", time.Hour},
		{"99999999999999999999999", "", 0},
		{"-5", "", 0},
		{"soon", "", 0},
		{"", "", 0},
		{"1.5", "", 0},
	} {
		h := http.Header{"Retry-After": {c.after}, "Date": {c.date}}
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("%q (Date %q): got %s, want %s", c.after, c.date, got, c.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("120", "Sun, 01 Mar 2026 12:00:20 GMT")
	f.Add("Sun, 01 Mar 2026 12:00:30 GMT", "")
	f.Fuzz(func(t *testing.T, after, date string) {
		if got := retryAfter(http.Header{"Retry-After": {after}, "Date": {date}}, time.Now()); got < 0 || got > maxWait {
			t.Errorf("%q, %q: %s", after, date, got)
		}
	})
}

// 503 is an outage, and with Retry-After a request to wait.
func TestAnswersThatAskToWait(t *testing.T) {
	t.Parallel()
	for status, header := range map[int]string{http.StatusServiceUnavailable: "7", http.StatusTooManyRequests: time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)} {
		e := newEndpoint(t, false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(status)
		})
		r := publish(t, e.publisher(Config{}), message(""))[0]
		want(t, r, throttled)
		if r.After < 7*time.Second || r.After > time.Minute || status == http.StatusServiceUnavailable && r.After != 7*time.Second {
			t.Errorf("%d: wait %s", status, r.After)
		}
	}
}

// No more of an answer is read than is needed: neither an endless body nor one that drips holds up what comes behind it.
func TestAnswersAreReadWithinBounds(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(w http.ResponseWriter, r *http.Request){
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			sent := 0
			for block := make([]byte, 32<<10); ; {
				n, err := w.Write(block)
				if sent += n; sent > 64<<20 { // more than buffers on the way hold
					t.Errorf("%d bytes were read, and more", sent)
					return
				}
				if err != nil {
					return
				}
			}
		},
		"dripping": func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	} {
		for _, status := range []int{200, 400} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				t.Parallel()
				e := newEndpoint(t, false, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(status)
					write(w, r)
				})
				for _, r := range publish(t, e.publisher(Config{Concurrency: 1, Timeout: patience}), messages(2)...) {
					want(t, r, map[int]situation{200: taken, 400: refused}[status])
				}
			})
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	other := newEndpoint(t, false, nil)
	e := newEndpoint(t, false, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.url(), http.StatusTemporaryRedirect)
	})
	r := publish(t, e.publisher(Config{}), message(""))[0]
	want(t, r, redirected)
	if other.count() != 0 || strings.Contains(r.Err.Error(), other.address) {
		t.Errorf("it was followed, or its target is shown: %v", r.Err)
	}
}

// As many requests are on their way as Concurrency says, and no more.
func TestConcurrencyIsKept(t *testing.T) {
	t.Parallel()
	inside, release := make(chan struct{}, 50), make(chan struct{})
	e := newEndpoint(t, false, func(_ http.ResponseWriter, r *http.Request) {
		inside <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	p := e.publisher(Config{Concurrency: 4})
	answers := start(t.Context(), p, messages(50)...)
	for range 4 {
		<-inside
	}
	p.mu.Lock()
	running, waiting := p.running, len(p.queue)
	p.mu.Unlock()
	if running != 4 || waiting != 46 || e.count() != 4 {
		t.Errorf("%d send, %d wait, and %d requests arrived: want 4, 46 and 4", running, waiting, e.count())
	}
	close(release)
	for _, answer := range answers {
		want(t, wait(t, answer), taken)
	}
}

// The transport may read a body after the answer, when the batch is the caller's again.
func TestARequestKeepsNothingOfItsEnvelope(t *testing.T) {
	t.Parallel()
	for _, c := range []broker.WireConfig{{}, {Format: broker.FormatBinary, Source: "/s"}, {Format: broker.FormatStructured, Source: "/s"}} {
		e := newEndpoint(t, false, nil)
		s := sender{publisher: e.publisher(Config{Wire: c})}
		m := message("k")
		request, refusal := s.request(t.Context(), &m)
		if refusal != nil {
			t.Fatalf("%+v", refusal)
		}
		clear(m.Payload)
		other := message("k")
		other.Payload = []byte("of another message")
		if _, refusal := s.request(t.Context(), &other); refusal != nil {
			t.Fatalf("%+v", refusal)
		}
		if body, err := io.ReadAll(request.Body); err != nil || !strings.Contains(string(body), `{"a":1}`) {
			t.Errorf("%s: the body is %q, %v", c.Format, body, err)
		}
	}
}

// A request that would be cut off in the middle is not begun: the endpoint would have the message twice.
func TestNothingIsBegunThatCannotEndInTime(t *testing.T) {
	t.Parallel()
	var p *Publisher
	e := newEndpoint(t, false, func(http.ResponseWriter, *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.usual, p.answers = time.Hour, p.answers+1 // as if the endpoint had become slow
	})
	p = e.publisher(Config{Concurrency: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answers := start(ctx, p, messages(2)...)
	want(t, wait(t, answers[0]), taken)
	want(t, wait(t, answers[1]), busy)
	if n := e.count(); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}
	want(t, wait(t, start(t.Context(), p, message(""))[0]), taken) // no deadline: there is time
}

func TestCheckConnectsAndSendsNothing(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		e := newEndpoint(t, secure, nil)
		if err := e.publisher(Config{}).Check(t.Context()); err != nil {
			t.Error(err)
		}
		err := e.publisher(Config{AllowNetworks: []netip.Prefix{}}).Check(t.Context())
		if outbox.CodeOf(err) != CodeAddressRefused || !strings.Contains(err.Error(), "127.0.0.1 is not a public address") || !strings.Contains(outbox.Hint(err), "allow_networks") {
			t.Errorf("an address that is not allowed: %v (%s)", err, outbox.Hint(err))
		}
		if e.count() != 0 {
			t.Error("a request arrived")
		}
	}
	e := newEndpoint(t, true, nil)
	err := e.publisher(Config{URL: strings.Replace(e.url(), "127.0.0.1", "localhost", 1)}).Check(t.Context())
	if outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate for another name: %v", err)
	}
}

func TestAddressesThatArePublic(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "172.32.0.1": true, "100.128.0.1": true, "192.167.255.255": true, "2606:4700::1111": true, "2a00:1450::1": true,
		"0.0.0.0": false, "10.1.2.3": false, "100.64.0.1": false, "127.0.0.1": false, "127.255.255.255": false, "169.254.169.254": false, "172.16.0.1": false,
		"172.31.255.255": false, "192.0.0.1": false, "192.168.1.1": false, "198.18.0.1": false, "224.0.0.1": false, "255.255.255.255": false, "240.0.0.1": false,
		"::": false, "::1": false, "::ffff:10.0.0.1": false, "::ffff:1.1.1.1": true, "::7f00:1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false,
		"ff02::1": false, "64:ff9b::7f00:1": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2001:0:1::1": false, "2001:db8::1": false, "100::1": false, "fec0::1": false,
	} {
		err := guard{}.control(t.Context(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(), nil)
		if (err == nil) != want || err != nil && asRefused(err) == nil {
			t.Errorf("%s: %v, want public: %t", address, err, want)
		}
	}
	allowed := guard{[]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}}
	for address, want := range map[string]bool{"10.1.2.3:80": true, "10.2.2.3:80": false, "[fd00::1]:80": true, "[::ffff:10.1.0.1]:80": true, "no address": false} {
		if err := allowed.control(t.Context(), "tcp", address, nil); (err == nil) != want {
			t.Errorf("%s: %v, want allowed: %t", address, err, want)
		}
	}
}

// Whatever the address is called, what is not global unicast is refused.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "2606:4700::1111", "64:ff9b::a00:1"} {
		b := netip.MustParseAddr(s).As16()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ip, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		err := guard{}.control(t.Context(), "tcp", netip.AddrPortFrom(ip, 1).String(), nil)
		ip = ip.Unmap()
		if err == nil && (!ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast()) {
			t.Errorf("%s is taken for public", ip)
		}
	})
}

// A secret in the URL stays with the publisher.
func TestTheURLIsInNoError(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, false, nil)
	address := strings.Replace(e.url(), "http://", "http://user:hidden@", 1) + "?token=hidden"
	p := e.publisher(Config{URL: address})
	want(t, publish(t, p, message(""))[0], taken)
	if got := e.first().Value("authorization"); got != "Basic "+base64.StdEncoding.EncodeToString([]byte("user:hidden")) {
		t.Errorf("authorization is %q", got)
	}
	e.stop()
	for _, err := range []error{publish(t, e.publisher(Config{URL: address}), message(""))[0].Err, p.Check(t.Context())} {
		if err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("got %v", err)
		}
	}
}
