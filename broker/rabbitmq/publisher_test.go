package rabbitmq

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

func TestValidateReportsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	err := Config{
		Exchange: "{{.Nothing}}", AckTimeout: time.Millisecond, MaxPending: -1, Channels: 101,
		Wire: broker.WireConfig{Format: "xml", Topic: "a", RoutingKey: "{{"},
	}.Validate()
	for _, what := range []string{"Exchange: ", ".Nothing", "AckTimeout is 1ms", "MaxPending is -1", "Channels is 101", `"xml" is not one of`, "topic_template and key_template are for other brokers", "routing_key_template"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q in it", err, what)
		}
	}
	if outbox.CodeOf(err) != outbox.ErrConfigInvalid.Code {
		t.Errorf("code %q", outbox.CodeOf(err))
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := (Config{Exchange: strings.Repeat("x", 256)}).Validate(); err == nil || !strings.Contains(err.Error(), "256 bytes") {
		t.Errorf("a long name: %v", err)
	}
}

func TestAddressesThatCannotBeReadAreRefusedWithoutTheirPassword(t *testing.T) {
	t.Parallel()
	for address, what := range map[string]string{
		"":                                   "none of amqp, amqps",
		"nats://host":                        `scheme "nats" is none of amqp, amqps`,
		"amqp://":                            "names no host",
		"amqp:///shop":                       "names no host",
		"amqp://u:secret%zz@host":            "not a URL that can be read",
		"amqp://u:secret#@host":              "",
		"amqp://u:secret@host/#x":            "a fragment",
		"amqp://u:secret@host?heartbeat=x":   "cannot be read",
		"amqp://u:secret@a, nats://secret@b": `scheme "nats"`,
	} {
		_, err := Dial(address, Options{}, Config{})
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "secret") || outbox.CodeOf(err) != outbox.ErrConfigInvalid.Code {
			t.Errorf("%s: got %v, want %q", address, err, what)
		}
	}
	p, err := Dial("amqp://u:secret@127.0.0.1:1/shop,amqps://u:secret@127.0.0.1:2", Options{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(p) })
	err = p.Check(t.Context())
	if text := fmt.Sprint(err, outbox.Hint(err)); !strings.Contains(text, "amqp://127.0.0.1:1/shop, amqps://127.0.0.1:2") || strings.Contains(text, "secret") {
		t.Errorf("Check says %s", text)
	}
}

func TestDescribeSaysWhatIsNotTheDefault(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"":                {AckTimeout: time.Second},
		"exchange=orders": {Exchange: "orders"},
		`exchange="a b{{.Scope}}" routing_key_template=x`: {Exchange: "a b{{.Scope}}", Wire: broker.WireConfig{RoutingKey: "x"}},
	} {
		p, err := Dial("amqp://127.0.0.1:1", Options{}, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeNow(p) })
		if got := p.Describe(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The client drops a return that nobody takes for 5 s, and with it the news that no queue has the message: after a standstill
// no confirmation is believed.
func TestAProcessThatStoodStillBelievesNoConfirmation(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	x, through := newProxy(t, b.url)
	p := connected(t, b.publisherAt(through, Config{}))
	x.Freeze()
	answers := start(p, messages(3, b.topic))
	p.untilSent(t, 3)
	p.pulse.Store(-int64(standstill)) // as if the watch had not looked since
	for _, r := range answers(t) {
		want(t, r, connectionLost)
	}
	x.Thaw()
	want(t, publish(t, t.Context(), connected(t, p), message(b.topic, ""))[0], taken)
}

// The server that does not answer is passed over.
func TestTheNextAddressIsTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	p := connected(t, b.publisherAt(fmt.Sprintf("amqp://127.0.0.1:%d, %s", brokertest.FreePort(), b.url), Config{}))
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
}

// A done that takes its time keeps nobody else's answer from being found out, and no return is lost meanwhile.
func TestASlowAnswerLosesNoReturn(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	p := connected(t, b.publisher(Config{Channels: 1}))
	const n = 3 * maxReturns
	batch := messages(n, b.topic+".elsewhere")
	var slow atomic.Bool
	var accepted, left atomic.Int64
	left.Store(n)
	held := make(chan struct{})
	p.Publish(t.Context(), batch, func(_ int, r broker.Result) {
		if slow.CompareAndSwap(false, true) {
			<-held
		}
		if r.Outcome == broker.Accepted {
			accepted.Add(1)
		}
		left.Add(-1)
	})
	until(t, "all was returned, though the first answer is not taken", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.flights.Pending() == 0
	})
	close(held)
	until(t, "all is answered", func() bool { return left.Load() == 0 })
	if accepted.Load() != 0 {
		t.Errorf("%d messages that no queue took were accepted", accepted.Load())
	}
}
