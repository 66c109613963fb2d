package nats

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

func TestConfigReportsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	err := Config{Stream: "A.B", Domain: "x y", AckTimeout: time.Millisecond, MaxPending: -1}.Validate()
	if outbox.CodeOf(err) != "onward/config-invalid" {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{`stream "A.B"`, `domain "x y"`, "AckTimeout is 1ms", "MaxPending is -1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
	if err := (Config{}).Validate(); !strings.Contains(err.Error(), "stream is missing") {
		t.Errorf("got %v", err)
	}
	if err := (Config{Stream: "ORDERS"}).Validate(); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestAConnectionThatKeepsMessagesForLaterIsRefused(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	for name, c := range map[string]struct {
		options []natsgo.Option
		refused bool
	}{
		"default":      {nil, true},
		"small buffer": {[]natsgo.Option{natsgo.ReconnectBufSize(100)}, true},
		"no buffer":    {[]natsgo.Option{natsgo.ReconnectBufSize(-1)}, false},
		"no reconnect": {[]natsgo.Option{natsgo.NoReconnect()}, false},
	} {
		nc, err := natsgo.Connect(url, c.options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		p, err := NewPublisher(nc, Config{Stream: "S"})
		if (err != nil) != c.refused {
			t.Errorf("%s: got %v, want refused: %v", name, err, c.refused)
		}
		if err != nil && (outbox.CodeOf(err) != "onward/broker-unsafe" || !strings.Contains(outbox.Hint(err), "ReconnectBufSize(-1)")) {
			t.Errorf("%s: %v, hint %q", name, err, outbox.Hint(err))
		}
		if p != nil {
			closeNow(p)
		}
	}
	if _, err := NewPublisher(nil, Config{Stream: "S"}); outbox.CodeOf(err) != "onward/config-invalid" {
		t.Errorf("nil connection: %v", err)
	}
}

func TestCapabilitiesAreTheStreamsAndTheServers(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.Duplicates = 3 * time.Minute })
	p := b.publisher(Config{})
	want := broker.Capabilities{Positions: true, Dedup: 3 * time.Minute, MaxBytes: int(b.nc.MaxPayload()) - rawWire.Overhead()}
	if got := p.Capabilities(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	b.updateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize, c.Duplicates = 50_000, time.Minute })
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	want.Dedup, want.MaxBytes = time.Minute, 50_000-rawWire.Overhead()
	if got := p.Capabilities(); got != want {
		t.Errorf("after Check: got %+v, want %+v", got, want)
	}
}

// The server's limit counts payload and headers; one byte decides.
func TestTheLimitOfTheServerIsReachedToTheByte(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	probe := message(b.topic, "")
	probe.Payload = nil
	publish(t, t.Context(), p, probe)
	ms, err := b.read(b.context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	headers := len("NATS/1.0\r\n\r\n")
	for _, h := range ms[0].Headers {
		headers += len(h.Name) + len(h.Value) + len(": \r\n")
	}
	fits, over := *probe.Record, *probe.Record
	fits.ID, over.ID = outbox.NewID(), outbox.NewID()
	fits.Payload = make([]byte, int(b.nc.MaxPayload())-headers)
	over.Payload = make([]byte, len(fits.Payload)+1)
	batch := []broker.Envelope{probe, probe}
	batch[0].Record, batch[1].Record = &fits, &over
	rs := publish(t, t.Context(), p, batch...)
	want(t, rs[0], taken)
	want(t, rs[1], aboveMaxPayload)
}

func TestCheckSaysWhatIsMissingAndWhatToDo(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	cases := map[string]struct {
		change func(*jetstream.StreamConfig)
		after  func(*bench)
		detail string
		hint   string
		code   outbox.Code
	}{
		"missing":  {nil, (*bench).deleteStream, "does not exist", "nats stream add T", broker.CodeUnavailable},
		"no acks":  {func(c *jetstream.StreamConfig) { c.NoAck = true }, nil, "no_ack", "--ack", "onward/broker-unsafe"},
		"sealed":   {nil, func(b *bench) { b.updateStream(func(c *jetstream.StreamConfig) { c.Sealed = true }) }, "sealed", "another stream", broker.CodeUnavailable},
		"messages": {func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew }, fill, "full: 1 messages", "max_msgs", broker.CodeUnavailable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, url, c.change)
			p := b.publisher(Config{})
			if c.after != nil {
				c.after(b)
			}
			err := p.Check(t.Context())
			if outbox.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.detail) || !strings.Contains(outbox.Hint(err), c.hint) {
				t.Errorf("got %v, hint %q", err, outbox.Hint(err))
			}
		})
	}
}

func fill(b *bench) {
	if _, err := b.js.Publish(b.context(), b.topic, nil); err != nil {
		b.tb.Fatal(err)
	}
}

func TestCheckNamesTheServerThatItCannotReachAndNotThePassword(t *testing.T) {
	t.Parallel()
	s := prepareServer(t, "")
	p, err := Dial(strings.Replace(s.url(), "nats://", "nats://user:secret@", 1), Options{}, Config{Stream: "S"})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(p)
	err = p.Check(t.Context())
	text := err.Error() + outbox.Hint(err)
	if outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(text, strings.TrimPrefix(s.url(), "nats://")) || strings.Contains(text, "secret") {
		t.Errorf("got %s", text)
	}
}

func TestDialWaitsForItsServerAndItsStream(t *testing.T) {
	t.Parallel()
	s := prepareServer(t, "")
	p, err := Dial(s.url(), Options{More: []natsgo.Option{natsgo.ReconnectWait(20 * time.Millisecond)}}, Config{Stream: "LATE"})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(p)
	want(t, publish(t, t.Context(), p, message("late.x", ""))[0], notConnected)
	s.start()
	until(t, "the server is found, and the stream is missing", func() bool {
		err := p.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "does not exist")
	})
	b := prepareBench(t, s.url())
	b.config.Name, b.stream, b.config.Subjects = "LATE", "LATE", []string{"late.>"}
	b.makeStream()
	if err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, publish(t, t.Context(), p, message("late.x", ""))[0], taken)
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server, user string
		options      Options
		ok           bool
	}{
		"token in the address":    {"authorization { token: t0k }", "t0k@", Options{}, true},
		"token":                   {"authorization { token: t0k }", "", Options{Token: "t0k"}, true},
		"wrong token":             {"authorization { token: t0k }", "other@", Options{}, false},
		"password in the address": {"authorization { user: u, password: p }", "u:p@", Options{}, true},
		"password":                {"authorization { user: u, password: p }", "", Options{User: "u", Password: "p"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, c.server)
			c.options.More = []natsgo.Option{natsgo.ReconnectWait(5 * time.Millisecond)}
			p, err := Dial(strings.Replace(s.url(), "://", "://"+c.user, 1), c.options, Config{Stream: "S"})
			if err != nil {
				t.Fatal(err)
			}
			defer closeNow(p)
			wanted := "does not exist" // connected, that is
			if !c.ok {
				wanted = "Authorization Violation"
			}
			until(t, wanted, func() bool {
				err := p.Check(t.Context())
				return err != nil && strings.Contains(err.Error(), wanted)
			})
		})
	}
}

func TestAddressesThatCannotBeUsedAreRefusedWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "host:4222", "http://u:secret@host", "nats://", "nats://u:secret@host/path", "nats://u:secret@host?creds=x", "nats://ok,kafka://u:secret@x", "nats://u:secret@%zz"} {
		_, err := Connect(address, Options{})
		if outbox.CodeOf(err) != "onward/config-invalid" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := Connect("nats://host", Options{NKeyFile: "/does/not/exist"}); outbox.CodeOf(err) != "onward/config-invalid" {
		t.Errorf("missing key file: %v", err)
	}
}

// A max_payload that is lowered while the publisher runs: the server breaks the connection at the first message that
// is too large, nats.go closes it for good, and a publisher with a connection of its own goes on with a new one.
func TestMaxPayloadIsLoweredWhileItRuns(t *testing.T) {
	t.Parallel()
	s := newServer(t, "max_payload: 100000")
	b := newBench(t, s.url(), nil)
	own, given := b.dialed(Options{}), b.publisher(Config{})
	until(t, "connected", func() bool { return own.Check(t.Context()) == nil })
	large := func() broker.Envelope {
		m := message(b.topic, "")
		m.Payload = make([]byte, 60_000)
		return m
	}
	want(t, publish(t, t.Context(), own, large())[0], taken)
	s.reload("max_payload: 30000", `"max_payload":30000`)

	m := large()
	want(t, publish(t, t.Context(), own, m)[0], connectionLost)
	until(t, "the publisher is back", func() bool { return own.Check(t.Context()) == nil })
	want(t, publish(t, t.Context(), own, m)[0], aboveMaxPayload)
	want(t, publish(t, t.Context(), own, message(b.topic, ""))[0], taken)
	if got, want := own.Capabilities().MaxBytes, 30_000-rawWire.Overhead(); got != want {
		t.Errorf("MaxBytes is %d, want %d", got, want)
	}

	want(t, publish(t, t.Context(), given, large())[0], connectionLost)
	want(t, publish(t, t.Context(), given, message(b.topic, ""))[0], notConnected)
	if err := given.Check(t.Context()); !strings.Contains(err.Error(), "closed for good") || !strings.Contains(outbox.Hint(err), "Dial") {
		t.Errorf("Check: %v, hint %q", err, outbox.Hint(err))
	}
}

func TestTheStreamIsDeletedAndMadeAgainUnderLoad(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.dialed(Options{})
	l := brokertest.StartLoad(t, p, b.topic, patience)
	l.Await(50)
	for range 5 {
		b.deleteStream()
		b.makeStream()
		l.Await(50)
	}
	l.Stop() // the load fails the test where a message is answered Retry or Rejected
}

func TestTheServerRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	b := newBench(t, s.url(), func(c *jetstream.StreamConfig) { c.Storage = jetstream.FileStorage })
	p := b.dialed(Options{})
	l := brokertest.StartLoad(t, p, b.topic, patience)
	for _, end := range []func(){s.stop, s.kill, s.stop, s.kill} {
		l.Await(50)
		end()
		s.start()
	}
	l.Await(50)
	l.Stop()
	l.Arrived(b.read)
}

// Somebody else listens to the subject and answers: that is no acknowledgement.
func TestAnAnswerThatIsNotTheStreamsCountsForNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.NoAck = true })
	for _, text := range []string{"hello", "{}", `{"stream":"OTHER","seq":1}`, `{"stream":"` + b.stream + `"}`, `{"stream":5}`} {
		if _, err := b.nc.Subscribe(b.topic, func(m *natsgo.Msg) { _ = m.Respond([]byte(text)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	want(t, publish(t, t.Context(), b.publisher(Config{AckTimeout: 200 * time.Millisecond}), message(b.topic, ""))[0], noAnswer)
}

// A topic that the stream does not take is not sent to whoever else listens.
func TestAnUnroutableMessageIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	heard, err := b.nc.SubscribeSync("nowhere." + b.topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p := b.publisher(Config{})
	want(t, publish(t, t.Context(), p, message("nowhere."+b.topic, ""))[0], unroutable)
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := heard.Pending(); n != 0 {
		t.Errorf("%d messages were sent to a listener", n)
	}
}

func TestMessagesGoOutInTheOrderOfPublish(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	var sent []string
	for n := range 60 {
		batch := messages(n%9, b.topic)
		for _, e := range batch {
			sent = append(sent, e.ID.String())
		}
		p.Publish(t.Context(), batch, func(int, broker.Result) {}) // many are on their way at once
	}
	ms, err := b.read(b.context(), len(sent))
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range ms {
		if m.Value("onward-id") != sent[i] {
			t.Fatalf("message %d of %d is not the one that was published there", i, len(sent))
		}
	}
}

// A message may be answered while the connection takes it, and its envelope may change then.
func TestWhatIsSentIsACopy(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	envelopes := messages(1, b.topic)
	before := string(envelopes[0].Payload)
	f := &flight{batch: &batch{envelopes: envelopes}, subject: b.topic}
	w := &writer{publisher: p, header: natsgo.Header{}}
	m, fault := w.build(f, p.link)
	if fault != nil {
		t.Fatalf("%+v", fault)
	}
	clear(envelopes[0].Payload)
	if string(m.Data) != before {
		t.Errorf("the message became %q", m.Data)
	}
}

// While the connection takes a message its writer answers for it: it alone knows whether the message was sent.
func TestALostConnectionLeavesAMessageToItsWriter(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	p.link.nc.Close()
	answered := 0
	for n, s := range []state{queued, building, sending, doubtful, away} {
		flights := &batch{done: func(int, broker.Result) { answered++ }, left: 1, unwatch: func() bool { return true }}
		p.mu.Lock()
		p.flights[uint64(n)] = &flight{batch: flights, token: uint64(n), state: s, sent: s >= sending, link: p.link}
		p.open++
		p.mu.Unlock()
		p.checkLink()
		if want := s == away; (answered == 1) != want {
			t.Errorf("state %d: %d answers", s, answered)
		}
	}
}

func TestCloseLeavesTheCallersConnectionOpenAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	nc, err := natsgo.Connect(b.url, safe()...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	before := nc.NumSubscriptions()
	p, err := NewPublisher(nc, Config{Stream: b.stream})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, t.Context(), p, messages(100, b.topic)...)
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Errorf("the connection is not open: %v", err)
	}
	if got := nc.NumSubscriptions(); got > before+1 { // nats.go keeps one for requests
		t.Errorf("%d subscriptions are left", got-before)
	}
	own := b.dialed(Options{})
	connection := own.link.nc
	if err := own.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !connection.IsClosed() {
		t.Error("a connection made by Dial is open after Close")
	}
	for _, one := range []*Publisher{p, own} {
		if err := one.Check(t.Context()); !strings.Contains(err.Error(), "closed") {
			t.Errorf("Check after Close: %v", err)
		}
	}
}

func TestCloseReturnsWhileTheConnectionIsStuck(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	b := newBench(t, s.url(), nil)
	p := b.dialed(Options{})
	until(t, "connected", func() bool { return p.Check(t.Context()) == nil })
	s.freeze()
	defer s.thaw()
	batch := messages(300, b.topic)
	for i := range batch {
		batch[i].Payload = make([]byte, 100_000) // more than the sockets take
	}
	answers := make(chan broker.Result, len(batch))
	p.Publish(t.Context(), batch, func(_ int, r broker.Result) { answers <- r })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	outcomes := map[broker.Outcome]int{}
	for range batch {
		outcomes[(<-answers).Outcome]++
	}
	if outcomes[broker.Uncertain] == 0 || outcomes[broker.Unavailable] == 0 || len(outcomes) != 2 {
		t.Errorf("answers: %v, want some uncertain and some unavailable", outcomes)
	}
}

// Every goroutine of a publisher ends with it. Other tests run at the same time: its address tells its own apart.
func TestCloseEndsTheGoroutines(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), nil)
	p := b.publisher(Config{})
	publish(t, t.Context(), p, message("nowhere."+b.topic, ""), message(b.topic, ""))
	goroutines := func() int {
		stacks := make([]byte, 8<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), fmt.Sprintf("(*Publisher).regularly(%p", p))
	}
	if n := goroutines(); n != 2 {
		t.Errorf("%d of its goroutines are found while it runs, want 2", n)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := goroutines(); n != 0 {
		t.Errorf("%d of its goroutines run after Close", n)
	}
}

func TestAFullOrSubjectlessStreamTakesNothing(t *testing.T) {
	t.Parallel()
	s := &stream{}
	if err := s.takes(); err == nil || !strings.Contains(err.Error(), "mirror") {
		t.Errorf("no subjects: %v", err)
	}
	s.Config.Subjects, s.Config.MaxBytes, s.State.Bytes = []string{"a"}, 100, 100
	if err := s.takes(); err != nil {
		t.Errorf("full, and it drops old messages: %v", err)
	}
	s.Config.Discard = "new"
	if err := s.takes(); err == nil || !strings.Contains(err.Error(), "full: 100 bytes") {
		t.Errorf("full, and it refuses new ones: %v", err)
	}
}
