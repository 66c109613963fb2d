package nats

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// drives brings about each situation on a real server and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		r := publish(t, t.Context(), b.publisher(Config{}), messages(2, b.topic)...)
		want(t, r[0], taken)
		if r[0].Position != "1" || r[1].Position != "2" {
			t.Errorf("positions %q and %q, want the stream's sequence", r[0].Position, r[1].Position)
		}
	},
	takenBefore: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p, m := b.publisher(Config{}), message(b.topic, "")
		publish(t, t.Context(), p, messages(3, b.topic)...)
		r := append(publish(t, t.Context(), p, m), publish(t, t.Context(), p, m)...)
		want(t, r[1], takenBefore)
		if r[0].Position != "4" || r[1].Position != "4" {
			t.Errorf("positions %q and %q, want 4 for both", r[0].Position, r[1].Position)
		}
	},

	found: func(t *testing.T) {
		b := newCompareBench(t)
		all := b.write(2)
		b.send(b.open(), taken, all...)
		b.forgotten()
		b.send(b.open(), found, all...)
	},

	badSubject: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		for _, topic := range []string{"", ".", "a..b", b.topic + ".", "*", b.topic + ".*", b.topic + ".>", "a b", "a\tb", b.topic + "\r\nPUB x 0", "$JS.API.STREAM.DELETE." + b.stream, "$SYS.REQ", "_INBOX.x"} {
			want(t, publish(t, t.Context(), p, message(topic, ""))[0], badSubject)
		}
		if n := b.count(); n != 0 {
			t.Errorf("%d messages arrived", n)
		}
	},
	templateFailed: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{Wire: broker.WireConfig{Topic: b.topic + ".{{.Headers.region}}"}})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], templateFailed)
		if n := b.count(); n != 0 {
			t.Errorf("%d messages arrived", n)
		}
	},
	badText: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		m := message(b.topic, "")
		m.Type = "\xff"
		p := b.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/s"}})
		want(t, publish(t, t.Context(), p, m)[0], badText)
	},
	badHeader: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		for _, change := range []func(*broker.Envelope){
			func(e *broker.Envelope) { e.Key = "line\nbreak" },
			func(e *broker.Envelope) { e.Type = "A\r\nonward-id: forged" },
			func(e *broker.Envelope) { e.Record.Headers = map[string]string{"a b": "1"} },
			func(e *broker.Envelope) { e.Record.Headers = map[string]string{"": "1"} },
			func(e *broker.Envelope) { e.Record.Headers = map[string]string{"ü": "1"} },
			func(e *broker.Envelope) { e.Record.Headers = map[string]string{"a:b": "1"} },
		} {
			m := message(b.topic, "")
			change(&m)
			want(t, publish(t, t.Context(), p, m)[0], badHeader)
		}
		if n := b.count(); n != 0 {
			t.Errorf("%d messages arrived", n)
		}
	},
	reservedHeader: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.AllowRollup = true })
		p := b.publisher(Config{})
		publish(t, t.Context(), p, messages(3, b.topic)...)
		for _, name := range []string{"Nats-Rollup", "nats-rollup", "Nats-Msg-Id"} {
			m := message(b.topic, "")
			m.Record.Headers = map[string]string{name: "all"}
			want(t, publish(t, t.Context(), p, m)[0], reservedHeader)
		}
		if n := b.count(); n != 3 {
			t.Errorf("the stream has %d messages, want 3", n)
		}
	},
	aboveMaxPayload: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		m := message(b.topic, "")
		m.Payload = make([]byte, b.nc.MaxPayload()+1)
		rs := publish(t, t.Context(), p, message(b.topic, ""), m, message(b.topic, ""))
		want(t, rs[1], aboveMaxPayload)
		want(t, rs[2], taken)
	},
	aboveMaxMsgSize: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
		p := b.publisher(Config{})
		m := message(b.topic, "")
		m.Payload = make([]byte, 2000)
		rs := publish(t, t.Context(), p, message(b.topic, ""), m)
		want(t, rs[0], taken)
		want(t, rs[1], aboveMaxMsgSize)
	},
	unroutable: func(t *testing.T) {
		b, other := newBench(t, commonURL(t), nil), newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		for _, topic := range []string{"nowhere." + b.topic, other.topic} {
			want(t, publish(t, t.Context(), p, message(topic, ""))[0], unroutable)
			p.mu.Lock()
			p.stream = nil // the server says it now: no responders, or another stream than expected
			p.mu.Unlock()
			want(t, publish(t, t.Context(), p, message(topic, ""))[0], unroutable)
		}
		if n := other.count(); n != 0 {
			t.Errorf("the other stream has %d messages", n)
		}
	},
	permissionDenied: func(t *testing.T) {
		s := newServer(t, `authorization { users: [
			{ user: all, password: p },
			{ user: few, password: p, permissions: { publish: ["*.orders", "$JS.API.STREAM.INFO.*"], subscribe: "_INBOX.>" } } ] }`) // all that a relay needs
		b := prepareBench(t, s.url(), natsgo.UserInfo("all", "p"))
		b.makeStream()
		prefix := strings.ToLower(b.stream)
		called := make(chan error, 10)
		p := b.publisher(Config{}, natsgo.UserInfo("few", "p"), natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) { called <- err }))
		rs := publish(t, t.Context(), p, message(b.topic, ""), message(prefix+".denied", ""), message(prefix+".forbïdden", ""), message(b.topic, ""))
		want(t, rs[0], taken)
		want(t, rs[1], permissionDenied)
		want(t, rs[2], permissionDenied)
		want(t, rs[3], taken)
		if err := <-called; !errors.Is(err, natsgo.ErrPermissionViolation) {
			t.Errorf("the caller's error handler was called with %v", err)
		}
	},
	subjectFull: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) {
			c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject = 1, jetstream.DiscardNew, true
		})
		rs := publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""), message(b.topic, ""), message(b.topic+"2", ""))
		want(t, rs[0], taken)
		want(t, rs[1], subjectFull)
		want(t, rs[2], taken)
	},
	overtaken: func(t *testing.T) {
		b := newCompareBench(t)
		p, ctx := b.open(), t.Context()
		for range 8 {
			go func() {
				for ctx.Err() == nil {
					_, _ = b.js.Publish(ctx, b.subject(), nil)
				}
			}()
		}
		until(t, "others are always there before it", func() bool {
			r := publish(t, ctx, p, b.write(1)...)[0]
			if r.Outcome != broker.Accepted {
				want(t, r, overtaken)
			}
			return r.Outcome != broker.Accepted
		})
		want(t, publish(t, t.Context(), p, message(b.topic, "other"))[0], taken)
	},
	refused: func(t *testing.T) { // a stream of counters takes no ordinary message
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.AllowMsgCounter, c.AllowDirect = true, true })
		want(t, publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""))[0], refused)
	},

	noStream: func(t *testing.T) {
		b := prepareBench(t, commonURL(t))
		p := b.publisher(Config{})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noStream)
		other := prepareBench(t, b.url) // now another stream takes the subject
		other.config.Subjects = b.config.Subjects
		other.makeStream()
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noStream)
		other.deleteStream()
		b.makeStream()
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		b.deleteStream()
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noStream)
		b.makeStream()
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	},
	noSubjects: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		mirror := prepareBench(t, b.url)
		mirror.config.Subjects, mirror.config.Mirror = nil, &jetstream.StreamSource{Name: b.stream}
		mirror.config.Duplicates = 0
		mirror.makeStream()
		want(t, publish(t, t.Context(), mirror.publisher(Config{}), message(b.topic, ""))[0], noSubjects)
	},
	noJetStream: func(t *testing.T) {
		s := newServer(t, "jetstream: disabled")
		b := prepareBench(t, s.url())
		want(t, publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""))[0], noJetStream)
	},
	justChanged: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p, topic := b.publisher(Config{}), "added."+b.topic
		want(t, publish(t, t.Context(), p, message(topic, ""))[0], unroutable)
		b.updateStream(func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, topic) })
		want(t, publish(t, t.Context(), p, message(topic, ""))[0], justChanged)
		want(t, publish(t, t.Context(), p, message(topic, ""))[0], taken)
	},
	streamFull: func(t *testing.T) {
		for name, change := range map[string]func(*jetstream.StreamConfig){
			"messages": func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew },
			"bytes":    func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1000, jetstream.DiscardNew },
		} {
			b := newBench(t, commonURL(t), change)
			p, first := b.publisher(Config{}), message(b.topic, "")
			rs := publish(t, t.Context(), p, append([]broker.Envelope{first}, messages(3, b.topic)...)...)
			want(t, rs[0], taken)
			want(t, rs[3], streamFull)
			want(t, publish(t, t.Context(), p, first)[0], takenBefore) // what it has it knows, full or not
			if t.Failed() {
				t.Fatal(name)
			}
		}
		s := newServer(t, `no_auth_user: u
			accounts { A: { users: [{ user: u, password: p }], jetstream: { max_memory: 2K, max_file: 2K } } }`)
		b := newBench(t, s.url(), nil)
		rs := publish(t, t.Context(), b.publisher(Config{}), messages(50, b.topic)...)
		want(t, rs[0], taken)
		want(t, rs[49], streamFull)
	},
	streamSealed: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		b.updateStream(func(c *jetstream.StreamConfig) { c.Sealed = true })
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], streamSealed)
	},
	unsafe: func(t *testing.T) {
		for name, change := range map[string]func(*jetstream.StreamConfig){
			"interest":  func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
			"workqueue": func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
			"per key":   func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 },
			"per key, although discard is new": func(c *jetstream.StreamConfig) {
				c.MaxMsgsPerSubject, c.Discard, c.MaxMsgs = 10, jetstream.DiscardNew, 1000
			},
			"sources": func(c *jetstream.StreamConfig) { c.Sources = []*jetstream.StreamSource{{Name: "ELSEWHERE"}} },
			"transform": func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: c.Subjects[0], Destination: c.Subjects[0][:len(c.Subjects[0])-1] + "x.>"}
			},
		} {
			b := newBench(t, commonURL(t), change)
			p := b.publisher(Config{Compare: true})
			want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], unsafe)
			if err := p.Check(t.Context()); outbox.CodeOf(err) != codeUnsafe || outbox.Hint(err) == "" {
				t.Errorf("%s: Check: %v (hint %q)", name, err, outbox.Hint(err))
			}
			if err := b.publisher(Config{}).Check(t.Context()); err != nil {
				t.Errorf("%s: Check without compare mode: %v", name, err)
			}
			if n := b.count(); n != 0 {
				t.Errorf("%s: %d messages were stored", name, n)
			}
		}
	},
	unreadable: func(t *testing.T) {
		s := newServer(t, "")
		b := compareBench{newBench(t, s.url(), noWindow), "k"}
		all := b.write(1)
		b.send(b.open(), taken, all...)
		p := b.publisher(Config{Compare: true})
		p.mu.Lock()
		p.cfg.Domain = "nowhere" // where it reads; messages still go to their subject
		p.mu.Unlock()
		b.forgotten()
		b.send(p, unreadable, all...)
		if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnavailable {
			t.Errorf("Check: %v", err)
		}
	},
	serverFailed: func(t *testing.T) { // no server could be made to say it; the class of the answer decides
		s, doubt := judge(&natsgo.APIError{Code: 500, ErrorCode: 10194, Description: "stream is offline"})
		if s != serverFailed || doubt {
			t.Errorf("got %v", s)
		}
		want(t, s.result(errors.New("offline")), serverFailed)
	},
	notConnected: func(t *testing.T) {
		s := newServer(t, "")
		b := newBench(t, s.url(), nil)
		p := b.publisher(Config{})
		s.stop()
		until(t, "the connection is down", func() bool { return !p.link.nc.IsConnected() })
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notConnected)
		never := b.dialed(Options{}) // nor ever connected
		want(t, publish(t, t.Context(), never, message(b.topic, ""))[0], notConnected)
	},
	notSent: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, publish(t, ended, b.publisher(Config{}), message(b.topic, ""))[0], notSent)
	},
	closed: func(t *testing.T) {
		b := newBench(t, commonURL(t), nil)
		p := b.publisher(Config{})
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], closed)
	},

	busy: func(t *testing.T) {
		s := newServer(t, "")
		s.extra = fmt.Sprintf(`jetstream { store_dir: %q, max_buffered_msgs: 1 }`, t.TempDir())
		s.stop()
		s.start()
		b := newBench(t, s.url(), nil)
		p := b.publisher(Config{})
		for range 50 {
			for _, r := range publish(t, t.Context(), p, messages(2000, b.topic)...) {
				if r.Outcome != broker.Accepted {
					want(t, r, busy)
					return
				}
			}
		}
		t.Error("the server was never too busy")
	},
	tooManyPending: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.NoAck = true })
		p := b.publisher(Config{MaxPending: 3, AckTimeout: 100 * time.Millisecond})
		rs := publish(t, t.Context(), p, messages(5, b.topic)...)
		want(t, rs[2], noAnswer)
		want(t, rs[3], tooManyPending)
		want(t, rs[4], tooManyPending)
	},

	inProcess: inProcessOnACluster,
	connectionLost: func(t *testing.T) {
		s := newServer(t, "")
		b := newBench(t, s.url(), nil)
		p := b.publisher(Config{})
		publish(t, t.Context(), p, message(b.topic, ""))
		s.freeze() // so that it is sent and not answered
		answer := make(chan broker.Result, 1)
		p.Publish(t.Context(), messages(1, b.topic), func(_ int, r broker.Result) { answer <- r })
		until(t, "it is sent", func() bool { return p.link.nc.Stats().OutMsgs >= 3 }) // a look-up and a message before
		s.kill()
		want(t, <-answer, connectionLost)
	},
	noAnswer: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.NoAck = true })
		m := message(b.topic, "")
		want(t, publish(t, t.Context(), b.publisher(Config{AckTimeout: 500 * time.Millisecond}), m)[0], noAnswer) // a slow machine takes a while to send it
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		want(t, publish(t, ctx, b.publisher(Config{}), m)[0], noAnswer)
	},
	contextEnded: func(t *testing.T) {
		b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.NoAck = true })
		p := b.publisher(Config{})
		before := p.link.nc.Stats().OutMsgs
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan broker.Result, 1)
		p.Publish(ctx, messages(1, b.topic), func(_ int, r broker.Result) { answer <- r })
		until(t, "it is sent", func() bool { return p.link.nc.Stats().OutMsgs > before })
		cancel()
		want(t, <-answer, contextEnded)
	},
}

func TestEachSituationOnARealServer(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/jetstream.md", rows(), *update)
}

func TestJudgeKnowsErrorsByCodeThenByClass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		class int
		code  natsgo.ErrorCode
		text  string
		want  situation
		doubt bool
	}{
		{404, 10059, "stream not found", noStream, true},
		{400, 10060, "expected stream does not match", noStream, true},
		{400, 10054, "message size exceeds maximum allowed", aboveMaxMsgSize, false},
		{400, 10097, "header size exceeds maximum allowed of 64k", aboveMaxMsgSize, false},
		{503, 10077, "maximum messages exceeded", streamFull, false},
		{503, 10077, "maximum messages per subject exceeded", subjectFull, false},
		{400, 10002, "resource limits exceeded for account", streamFull, false},
		{503, 10023, "insufficient resources", streamFull, false},
		{500, 10028, "insufficient memory resources available", streamFull, false},
		{500, 10047, "insufficient storage resources available", streamFull, false},
		{503, 10008, "JetStream system temporarily unavailable", noJetStream, false},
		{503, 10039, "JetStream not enabled for account", noJetStream, false},
		{503, 10076, "JetStream not enabled", noJetStream, false},
		{400, 10109, "invalid operation on sealed stream", streamSealed, false},
		{409, 10158, "duplicate message id is in process", inProcess, false},
		{429, 10167, "too many requests", busy, false},
		{500, 10118, "stream is offline", serverFailed, false},
		{503, 1, "unknown", serverFailed, false},
		{429, 1, "unknown", busy, false},
		{409, 1, "unknown", inProcess, false},
		{400, 10169, "message counter increment is missing", refused, false},
	} {
		if s, doubt := judge(&natsgo.APIError{Code: c.class, ErrorCode: c.code, Description: c.text}); s != c.want || doubt != c.doubt {
			t.Errorf("%d %d %s: got %q (doubt %v), want %q", c.class, c.code, c.text, verdicts[s].means, doubt, verdicts[c.want].means)
		}
	}
}
