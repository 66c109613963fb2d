package servicebus

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

// drives brings about each situation at the peer and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		for _, r := range publish(t, t.Context(), p, messages(3, b.topic)...) {
			want(t, r, taken)
		}
		if n := b.count(p); n != 3 {
			t.Errorf("%d messages arrived, want 3", n)
		}
	},

	templateFailed: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		for _, c := range []broker.WireConfig{{Topic: "{{.Headers.missing}}"}, {Key: "{{.Headers.missing}}"}} {
			p := connected(t, b.publisher(Config{Wire: c}))
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], templateFailed)
		}
	},
	badText: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/test"}}))
		m := message(b.topic, "")
		m.Type = "\xff"
		want(t, publish(t, t.Context(), p, m)[0], badText)
	},
	badSchedule: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{ScheduleHeader: "not-before"}))
		m := message(b.topic, "")
		m.Record.Headers = map[string]string{"not-before": "tomorrow"}
		want(t, publish(t, t.Context(), p, m)[0], badSchedule)
	},
	aboveKnownLimit: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		large := message(b.topic, "")
		large.Payload = make([]byte, 256<<10)
		r := publish(t, t.Context(), connected(t, b.publisher(Config{})), message(b.topic, ""), large, message(b.topic, ""))
		want(t, r[0], taken)
		want(t, r[1], aboveKnownLimit)
		want(t, r[2], taken)
	},
	aboveLimit: rejected(aboveLimit, "amqp:link:message-size-exceeded"),
	refusedForGood: func(t *testing.T) {
		rejected(refusedForGood, "amqp:not-allowed", "amqp:not-implemented", "amqp:invalid-field", "amqp:decode-error", "com.microsoft:argument-error", "com.microsoft:argument-out-of-range")(t)
		b := newBench(t, commonPeer(t))
		b.peer.declare(b.topic, settings{"sessions": true})
		r := publish(t, t.Context(), connected(t, b.publisher(Config{})), message(b.topic, "a"), message(b.topic, ""))
		want(t, r[0], taken)
		want(t, r[1], refusedForGood)
	},
	noSuchEntity: func(t *testing.T) {
		rejected(noSuchEntity, "amqp:not-found", "amqp:resource-deleted")(t)
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		r := publish(t, t.Context(), p, message(b.topic, ""), message(b.topic+".missing", ""), message(b.topic+".missing", ""))
		want(t, r[0], taken)
		want(t, r[1], noSuchEntity)
		want(t, r[2], noSuchEntity)
		b.peer.declare(b.topic+".missing", nil)
		want(t, publish(t, t.Context(), p, message(b.topic+".missing", ""))[0], taken)
	},

	permissionDenied: func(t *testing.T) {
		rejected(permissionDenied, "amqp:unauthorized-access", "com.microsoft:auth-failed")(t)
		b := newBench(t, commonPeer(t))
		p := b.publisherAt(b.peer.connection(listenKey), Options{}, Config{Wire: broker.WireConfig{Topic: b.topic}})
		checkSays(t, p, "the right to send")
		untilConnected(t, p)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], permissionDenied)
	},
	full: func(t *testing.T) {
		refusedLink(full, "amqp:resource-limit-exceeded")(t)
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		lonely := b.topic + ".lonely" // nobody reads it
		b.peer.declare(lonely, settings{"quota": 2})
		r := publish(t, t.Context(), p, append(messages(3, lonely), message(b.topic, ""))...)
		want(t, r[1], taken)
		want(t, r[2], full)
		want(t, r[3], taken)
		b.peer.declare(lonely, settings{"quota": 3})
		want(t, publish(t, t.Context(), p, message(lonely, ""))[0], taken)
	},
	disabled: func(t *testing.T) {
		rejected(disabled, "com.microsoft:entity-disabled")(t)
		refusedLink(disabled, "com.microsoft:entity-disabled")(t)
	},
	released: rejected(released, "released"),
	modified: rejected(modified, "modified"),
	refused:  rejected(refused, "amqp:resource-locked", "com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost", "vendor:whatever"),

	noEntity: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := b.publisher(Config{Wire: broker.WireConfig{Topic: b.topic + ".later"}})
		checkSays(t, p, "make the queue or topic")
		untilConnected(t, p)
		m := message(b.topic, "")
		want(t, publish(t, t.Context(), p, m)[0], noEntity)
		b.peer.declare(b.topic+".later", nil)
		want(t, publish(t, t.Context(), connected(t, p), m)[0], taken)
	},
	allFull: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		lonely := b.topic + ".lonely"
		b.peer.declare(lonely, settings{"quota": 1})
		p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Topic: lonely}}))
		r := publish(t, t.Context(), p, messages(2, "any")...)
		want(t, r[0], taken)
		want(t, r[1], allFull)
		b.peer.declare(lonely, settings{"refuse": "amqp:resource-limit-exceeded", "end": "amqp:link:detach-forced"})
		checkSays(t, p, "full")
		want(t, publish(t, t.Context(), p, message("any", ""))[0], allFull)
	},
	allDisabled: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		b.peer.declare(b.topic, settings{"refuse": "com.microsoft:entity-disabled"})
		p := b.fixed()
		checkSays(t, p, "enable it")
		untilConnected(t, p)
		want(t, publish(t, t.Context(), p, message("any", ""))[0], allDisabled)
		b.peer.declare(b.topic, nil)
		want(t, publish(t, t.Context(), connected(t, p), message("any", ""))[0], taken)
	},
	notAuthorized: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		wrong := "SharedAccessKeyName=onward;SharedAccessKey=" + "d3JvbmcgYnV0IHNlY3JldA=="
		past := (&sharedKey{"onward", "c2VjcmV0LW9mLW9ud2FyZA=="}).sign("amqp://"+b.peer.host+"/", time.Now().Add(-time.Minute))
		for _, p := range []*Publisher{
			b.publisherAt(b.peer.connection(wrong), Options{}, Config{}),
			b.publisherAt(b.peer.connection("SharedAccessSignature="+past), Options{}, Config{}),
		} {
			checkSays(t, p, "refuses the key")
			untilConnected(t, p)
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notAuthorized)
			if err := p.Check(t.Context()); strings.Contains(fmt.Sprint(err, outbox.Hint(err)), "d3Jvbmcg") || strings.Contains(fmt.Sprint(err), "sig=") {
				t.Errorf("the key is in %v", err)
			}
		}
		nobody := b.withCredential(newCredential(0))
		checkSays(t, nobody, "gives no token")
		untilConnected(t, nobody)
		want(t, publish(t, t.Context(), nobody, message(b.topic, ""))[0], notAuthorized)
	},
	linkRefused: refusedLink(linkRefused, "amqp:internal-error", "amqp:not-allowed", "vendor:whatever"),
	notConnected: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := b.publisherAt((&peer{host: fmt.Sprint("127.0.0.1:", brokertest.FreePort())}).connection(fullKey), Options{}, Config{})
		checkSays(t, p, "may this machine reach it")
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notConnected)
	},
	noCredit: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		b.peer.declare(b.topic, settings{"credit": 0})
		p := connected(t, b.publisher(Config{AckTimeout: 200 * time.Millisecond}))
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noCredit)
		b.peer.declare(b.topic, nil)
		if n := b.count(connected(t, b.publisher(Config{}))); n != 0 {
			t.Errorf("%d messages arrived that had no credit", n)
		}
	},
	notSent: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, publish(t, ended, connected(t, b.publisher(Config{})), message(b.topic, ""))[0], notSent)
	},
	closed: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		closeNow(p)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], closed)
	},

	serverBusy: func(t *testing.T) {
		rejected(serverBusy, "com.microsoft:server-busy")(t)
		refusedLink(serverBusy, "com.microsoft:server-busy")(t)
		if after := serverBusy.result(nil).After; after != 10*time.Second {
			t.Errorf("the answer asks for %s", after)
		}
	},
	tooManyPending: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		r := publish(t, t.Context(), connected(t, b.publisher(Config{MaxPending: 2})), messages(3, b.topic)...)
		want(t, r[0], taken)
		want(t, r[2], tooManyPending)
	},

	linkLost: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		stored := 0
		for _, s := range []settings{
			{"detach": "amqp:link:detach-forced"},
			{"detach": "amqp:resource-limit-exceeded"}, // after which the client's own sender is dead for good
			{"detach": "amqp:unauthorized-access", "store": true},
			{"close": "amqp:connection:forced"},
			{"close": "amqp:connection:forced", "store": true},
		} {
			s["times"] = 1
			b.peer.declare(b.topic, s)
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], linkLost)
			if s["store"] == true {
				stored++
			}
			until(t, "it goes on", func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted })
			stored++
		}
		if n := b.count(p); n != stored {
			t.Errorf("%d messages arrived, want %d", n, stored)
		}
	},
	noAnswer: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{AckTimeout: 200 * time.Millisecond}))
		next := func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted }
		until(t, "the link is open", next)
		b.peer.declare(b.topic, settings{"outcome": "silent", "times": 1})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noAnswer)
		until(t, "a new link is open", next)
	},
	contextEnded: func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		b.peer.declare(b.topic, settings{"outcome": "silent", "times": 1})
		ctx, cancel := context.WithCancel(t.Context())
		answer := start(t, ctx, p, message(b.topic, ""))
		p.untilSent(t, 1)
		cancel()
		want(t, answer()[0], contextEnded)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	},
	unclear: rejected(unclear, "settled", "com.microsoft:timeout", "com.microsoft:operation-cancelled", "amqp:internal-error"),
}

// rejected is a situation in which the peer settles a message with an outcome, or rejects it with a condition; nothing is stored,
// and the next message is taken.
func rejected(s situation, outcomes ...string) func(t *testing.T) {
	return func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		for i, outcome := range outcomes {
			b.peer.declare(b.topic, settings{"outcome": outcome, "times": 1})
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], s)
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
			if t.Failed() {
				t.Fatalf("outcome %s", outcomes[i])
			}
		}
		if n := b.count(p); n != len(outcomes) {
			t.Errorf("%d messages arrived, want %d", n, len(outcomes))
		}
	}
}

// refusedLink is a situation in which the peer refuses the link.
func refusedLink(s situation, conditions ...string) func(t *testing.T) {
	return func(t *testing.T) {
		b := newBench(t, commonPeer(t))
		p := connected(t, b.publisher(Config{}))
		for i, condition := range conditions {
			entity := fmt.Sprint(b.topic, ".", i)
			b.peer.declare(entity, settings{"refuse": condition})
			r := publish(t, t.Context(), p, message(entity, ""), message(b.topic, ""), message(entity, ""))
			want(t, r[0], s)
			want(t, r[1], taken)
			want(t, r[2], s)
			b.peer.declare(entity, nil)
			want(t, publish(t, t.Context(), p, message(entity, ""))[0], taken)
		}
	}
}

// checkSays waits until Check has found a fault that comes with these words of advice.
func checkSays(t *testing.T, p *Publisher, hint string) {
	t.Helper()
	var err error
	defer func() {
		if t.Failed() {
			t.Logf("Check says %v (hint %q), want a hint with %q", err, outbox.Hint(err), hint)
		}
	}()
	until(t, "Check says what is wrong", func() bool {
		err = p.Check(t.Context())
		return outbox.CodeOf(err) == broker.CodeUnavailable && strings.Contains(outbox.Hint(err), hint)
	})
}

// untilConnected waits for the connection of a publisher whose Check says something else is wrong.
func untilConnected(t *testing.T, p *Publisher) {
	t.Helper()
	until(t, "there is a connection", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.link != nil
	})
}

// untilSent waits until n messages are on their way.
func (p *Publisher) untilSent(t *testing.T, n int) {
	t.Helper()
	until(t, "the messages are on their way", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		found := 0
		for _, b := range p.batches {
			for i := range b.flights {
				if b.flights[i].state == sent {
					found++
				}
			}
		}
		return found >= n
	})
}

// credential gives tokens as one of azidentity does: with this life, from 1 s on, or none.
type credential struct{ life atomic.Int64 }

func newCredential(life time.Duration) *credential {
	c := &credential{}
	c.life.Store(int64(life))
	return c
}

func (c *credential) GetToken(_ context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	life := time.Duration(c.life.Load())
	if len(o.Scopes) != 1 || !strings.Contains(o.Scopes[0], "servicebus.azure.net") || life == 0 {
		return azcore.AccessToken{}, fmt.Errorf("no identity here, for %v", o.Scopes)
	}
	return azcore.AccessToken{Token: "jwt-of-the-test", ExpiresOn: time.Now().Add(life).Truncate(time.Second)}, nil
}

// withCredential is a publisher with an identity; the peer takes no TLS.
func (b *bench) withCredential(c *credential) *Publisher {
	b.tb.Helper()
	d, err := newDialer("servicebus://"+b.peer.host, Options{Credential: c})
	b.must(err)
	d.address.emulator = true
	p, err := dial(d, Config{})
	b.must(err)
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

func TestEachSituationAtThePeer(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/servicebus.md", rows(), *update)
}
