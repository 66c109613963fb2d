package kafka

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// drives brings about each situation on a real server and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		rs := publish(t, t.Context(), b.publisher(Config{}), messages(2, b.topic)...)
		want(t, rs[0], taken)
		if rs[0].Position != "0:0" || rs[1].Position != "0:1" {
			t.Errorf("positions %q and %q, want partition and offset", rs[0].Position, rs[1].Position)
		}
	},
	takenBefore: onlyJudged(46, takenBefore, stored),

	badTopic: func(t *testing.T) {
		p := newBench(t, commonURL(t), 1).publisher(Config{})
		for _, topic := range []string{"", ".", "..", "a b", "a/b", "ü", "a:b", strings.Repeat("a", 250)} {
			want(t, publish(t, t.Context(), p, message(topic, ""))[0], badTopic)
		}
	},
	templateFailed: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		p := b.publisher(Config{Wire: broker.WireConfig{Topic: b.topic, Key: "{{.Headers.customer}}"}})
		batch := messages(2, "elsewhere")
		batch[1].Record.Headers = map[string]string{"customer": "c7"}
		rs := publish(t, t.Context(), p, batch...)
		want(t, rs[0], templateFailed)
		want(t, rs[1], taken)
		parts, err := b.records(b.context(), 1)
		if err != nil || len(parts[0]) != 1 || string(parts[0][0].Key) != "c7" || arrived(parts[0][0]).Value("onward-topic") != "elsewhere" {
			t.Errorf("the topic has %v (%v)", parts[0], err)
		}
	},
	badText: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		m := message(b.topic, "")
		m.Type = "\xff"
		want(t, publish(t, t.Context(), b.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/x"}}), m)[0], badText)
	},
	tooLarge: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1, "max.message.bytes=2000")
		m := message(b.topic, "")
		m.Payload = make([]byte, 2000)
		rs := publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""), m, message(b.topic, ""))
		want(t, rs[0], taken)
		want(t, rs[1], tooLarge)
		want(t, rs[2], taken)
	},
	tooLargeByNow: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		p := b.publisher(Config{})
		large := message(b.topic, "k")
		large.Payload = make([]byte, 2000)
		want(t, publish(t, t.Context(), p, large)[0], taken)
		b.lower(b.publisher(Config{}), 1500)
		batch := append(messages(20, b.topic), large, message(b.topic, "k"))
		rs := publish(t, t.Context(), p, append(batch, messages(20, b.topic)...)...)
		want(t, rs[20], tooLargeByNow)
		want(t, rs[21], behind)
		for i, r := range rs {
			if i != 20 && i != 21 {
				want(t, r, taken)
			}
		}
		until(t, "the lower limit is known", func() bool { // and nothing is sent
			r := publish(t, t.Context(), p, large)[0]
			return r.Outcome == verdicts[tooLarge].outcome && strings.Contains(r.Err.Error(), "takes 1500")
		})
	},
	refused: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1, "cleanup.policy=compact")
		batch := []broker.Envelope{message(b.topic, "a"), message(b.topic, ""), message(b.topic, "b"), message(b.topic, ""), message(b.topic, "a")}
		for i, r := range publish(t, t.Context(), b.publisher(Config{}), batch...) {
			want(t, r, []situation{taken, refused}[i%2])
		}
	},
	noTopic: func(t *testing.T) {
		b := prepareBench(t, commonURL(t))
		p := b.publisher(Config{})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], noTopic)
		b.makeTopic(b.topic, 1)
		until(t, "the topic is seen", func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted })
		b.deleteTopic(b.topic)
		until(t, "the topic is gone", func() bool {
			r := publish(t, t.Context(), p, message(b.topic, ""))[0]
			return r.Code == broker.CodeUnroutable
		})
		b.makeTopic(b.topic, 2)
		until(t, "the new topic is seen", func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted })
	},
	permissionDenied: func(t *testing.T) {
		c := theCluster(t)
		b := c.bench(t, []int32{1})
		denied, hidden := b.topic+".denied", b.topic+".hidden"
		b.makeTopic(denied, 1)
		b.makeTopic(hidden, 1)
		c.allow(t, "writes", b.topic, kmsg.ACLOperationWrite)
		c.allow(t, "writes", denied, kmsg.ACLOperationDescribe)
		p := c.dial(t, Config{}, "plain", "writes")
		until(t, "the user may write", func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Outcome == broker.Accepted })
		rs := publish(t, t.Context(), p, message(b.topic, ""), message(denied, ""), message(hidden, ""), message(b.topic, ""))
		want(t, rs[0], taken)
		want(t, rs[1], permissionDenied)
		want(t, rs[2], permissionDenied)
		want(t, rs[3], taken)
	},
	badTime: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		late := message(b.topic, "")
		late.Record.CreatedAt = time.Now().Add(3 * time.Hour)
		rs := publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""), late, message(b.topic, ""))
		want(t, rs[0], taken)
		want(t, rs[1], badTime)
		want(t, rs[2], taken)
	},
	behind: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1, "max.message.bytes=2000")
		p, large, next := b.publisher(Config{}), message(b.topic, "k"), message(b.topic, "k")
		large.Payload = make([]byte, 2000)
		rs := publish(t, t.Context(), p, large, next)
		want(t, rs[0], tooLarge)
		want(t, rs[1], behind)
		want(t, publish(t, t.Context(), p, next)[0], taken)
	},
	otherError: onlyJudged(44, otherError, single), // POLICY_VIOLATION

	tooFewReplicas: func(t *testing.T) {
		c := theCluster(t)
		b := c.bench(t, []int32{1, 2}, "min.insync.replicas=2")
		c.without2(t, func() {
			p := b.publisher(Config{})
			until(t, "one replica is out of sync", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Unavailable })
			before := b.count()
			want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], tooFewReplicas)
			if n := b.count(); n != before {
				t.Errorf("the topic has %d records, want %d", n, before)
			}
		})
	},
	noLeader: func(t *testing.T) {
		c := theCluster(t)
		b := c.bench(t, []int32{2})
		p := b.publisher(Config{AckTimeout: 2 * time.Second})
		until(t, "it is taken", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Accepted })
		c.without2(t, func() {
			until(t, "the leader is lost", func() bool {
				r := publish(t, t.Context(), p, message(b.topic, "k"))[0]
				if errors.Is(r.Err, errNoLeader) {
					want(t, r, noLeader)
				}
				return errors.Is(r.Err, errNoLeader)
			})
		})
		until(t, "it is back", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Accepted })
	},
	notAllowed: func(t *testing.T) {
		c := theCluster(t)
		b := c.bench(t, []int32{1})
		c.allow(t, "reads", b.topic, kmsg.ACLOperationDescribe)
		p := c.dial(t, Config{}, "plain", "reads")
		until(t, "the user sees the topic", func() bool { return publish(t, t.Context(), p, message(b.topic, ""))[0].Code == broker.CodePermission })
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notAllowed)
		if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodePermission || outbox.Hint(err) == "" {
			t.Errorf("Check: %v (hint %q)", err, outbox.Hint(err))
		}
	},
	serverFailed: onlyJudged(14, serverFailed, again), // COORDINATOR_LOAD_IN_PROGRESS
	notConnected: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1).behindProxy()
		p := b.publisher(Config{AckTimeout: 2 * time.Second})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		b.proxy.stop()
		until(t, "the broken connection is seen", func() bool {
			r := publish(t, t.Context(), p, message(b.topic, ""))[0]
			return r.Outcome == broker.Unavailable
		})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notConnected)
		want(t, publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""))[0], notConnected) // nor ever connected
	},
	notSent: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, publish(t, ended, b.publisher(Config{}), message(b.topic, ""))[0], notSent)
	},
	closed: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		p := b.publisher(Config{})
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], closed)
	},

	busy: onlyJudged(89, busy, whole),
	tooManyPending: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1)
		rs := publish(t, t.Context(), b.publisher(Config{MaxPending: 3}), append(messages(3, b.topic), message(b.topic, "k"), message(b.topic, "k"))...)
		want(t, rs[2], taken)
		want(t, rs[3], tooManyPending)
		want(t, rs[4], tooManyPending)
	},

	connectionLost: func(t *testing.T) {
		b := newBench(t, commonURL(t), 1).behindProxy()
		p := b.publisher(Config{AckTimeout: 500 * time.Millisecond})
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		b.proxy.deafen()
		answer := make(chan broker.Result, 1)
		p.Publish(t.Context(), messages(1, b.topic), func(_ int, r broker.Result) { answer <- r })
		until(t, "the broker has stored it", func() bool { return b.count() == 2 })
		b.proxy.stop()
		want(t, <-answer, connectionLost)
	},
	unconfirmed: func(t *testing.T) {
		c := theCluster(t)
		b := c.bench(t, []int32{1, 2}, "min.insync.replicas=2")
		p := b.publisher(Config{AckTimeout: 3 * time.Second})
		until(t, "both replicas are there", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Accepted })
		c.without2(t, func() { want(t, publish(t, t.Context(), p, message(b.topic, "k"))[0], unconfirmed) })
		until(t, "the other replica is back", func() bool { return publish(t, t.Context(), p, message(b.topic, "k"))[0].Outcome == broker.Accepted })
	},
	forgotten: onlyJudged(45, forgotten, reset),
	noAnswer: func(t *testing.T) {
		b, p := frozen(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		want(t, publish(t, ctx, p, message(b.topic, ""))[0], noAnswer)
	},
	contextEnded: func(t *testing.T) {
		b, p := frozen(t)
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan broker.Result, 1)
		p.Publish(ctx, messages(1, b.topic), func(_ int, r broker.Result) { answer <- r })
		cancel()
		want(t, <-answer, contextEnded)
	},

	alreadyThere:  driveAlreadyThere,
	unclaimed:     driveUnclaimed,
	idNotAllowed:  driveIDNotAllowed,
	noCoordinator: driveNoCoordinator,
	badTimeout:    driveBadTimeout,
	noProgress:    driveNoProgress,
	aborted:       driveAborted,
}

// frozen is a publisher that has published, before a broker that has become silent.
func frozen(t *testing.T) (*bench, *Publisher) {
	t.Helper()
	b := newBench(t, commonURL(t), 1).behindProxy()
	p := b.publisher(Config{})
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	b.proxy.freeze()
	return b, p
}

// onlyJudged is for errors that no server could be made to answer: the code decides.
func onlyJudged(code int16, s situation, k kind) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		if !strings.Contains(verdicts[s].seen, "*") {
			t.Error("the table does not say that no server was made to say it")
		}
		got, what := judge(code, kerr.IsRetriable(kerr.ErrorForCode(code)))
		if got != s || what != k {
			t.Errorf("%v: got %q, want %q", kerr.ErrorForCode(code), verdicts[got].means, verdicts[s].means)
		}
		if r := s.result(errors.New("cause")); r.Outcome != verdicts[s].outcome || r.Code != verdicts[s].code {
			t.Errorf("got %v", r)
		}
	}
}

func TestEachSituationOnARealServer(t *testing.T) {
	t.Parallel()
	for s, drive := range drives {
		t.Run(fmt.Sprintf("%s %s", verdicts[s].outcome, verdicts[s].means), func(t *testing.T) {
			t.Parallel()
			if drive == nil {
				t.Fatal("nothing brings it about")
			}
			drive(t)
		})
	}
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| how the publisher knows | what it is | outcome | code |\n|---|---|---|---|\n")
	for _, v := range verdicts {
		code := "-"
		if v.code != "" {
			code = "`" + strings.TrimPrefix(string(v.code), "onward/") + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", v.seen, v.means, v.outcome, code)
	}
	const file, begin, end = "../../docs/brokers/kafka.md", "<!-- outcomes: written by go test -update -->\n", "<!-- end of outcomes -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if old != table.String() {
		t.Errorf("%s is not what the publisher does (go test -update writes it):\n%s", file, table.String())
	}
}
