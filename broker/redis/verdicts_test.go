package redis

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

var update = flag.Bool("update", false, "write the golden files")

// onOwn is a situation in which a setting puts a whole server: refused, with Check saying so, and taken once it is undone.
func onOwn(s situation, hint string, begin, end func(b *bench)) func(t *testing.T) {
	return func(t *testing.T) {
		b := newServer(t).bench()
		p := connected(t, b.publisher(Config{}))
		begin(b)
		m := message(b.topic, "")
		want(t, publish(t, t.Context(), p, m)[0], s)
		if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(outbox.Hint(err), hint) {
			t.Errorf("Check says %v (hint %q), want a hint with %q", err, outbox.Hint(err), hint)
		}
		end(b)
		until(t, "the server takes messages again", func() bool {
			return p.Check(t.Context()) == nil && publish(t, t.Context(), p, m)[0].Outcome == broker.Accepted
		})
		if n := b.count(); n != 1 {
			t.Errorf("the stream has %d entries, want 1", n)
		}
	}
}

// drives brings about each situation on a real server and checks the answer against the table.
var drives = [situations]func(t *testing.T){
	taken: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		results := publish(t, t.Context(), connected(t, b.publisher(Config{})), messages(3, b.topic)...)
		entries, err := b.read(t.Context(), 3)
		b.must(err)
		for i, r := range results {
			want(t, r, taken)
			if r.Position != entries[i].Position {
				t.Errorf("message %d is at %q, the answer said %q", i, entries[i].Position, r.Position)
			}
		}
	},

	templateFailed: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Topic: "{{.Headers.missing}}"}}))
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], templateFailed)
	},
	badText: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{Wire: broker.WireConfig{Format: broker.FormatStructured, Source: "/test"}}))
		m := message(b.topic, "")
		m.Type = "\xff"
		want(t, publish(t, t.Context(), p, m)[0], badText)
	},
	aboveKnownLimit: func(t *testing.T) {
		b := newServer(t, "--proto-max-bulk-len", "1mb").bench()
		p := connected(t, b.publisher(Config{}))
		if got := p.Capabilities().MaxBytes; got != 1<<20 {
			t.Errorf("MaxBytes is %d", got)
		}
		fits, over := message(b.topic, ""), message(b.topic, "")
		fits.Payload, over.Payload = make([]byte, 1<<20), make([]byte, 1<<20+1)
		r := publish(t, t.Context(), p, fits, over, message(b.topic, ""))
		want(t, r[0], taken)
		want(t, r[1], aboveKnownLimit)
		want(t, r[2], taken)
	},
	wrongType: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		b.makeOther()
		for _, c := range []Config{{}, {Fence: "wrong-type"}} { // a script's errors begin with the same word
			r := publish(t, t.Context(), connected(t, b.publisher(c)), message(b.topic, ""), message(b.other(), ""), message(b.topic, ""))
			want(t, r[0], taken)
			want(t, r[1], wrongType)
			want(t, r[2], taken)
		}
	},

	permissionDenied: func(t *testing.T) {
		b := newServer(t).bench()
		b.must(b.client.Do(t.Context(), "acl", "setuser", "relay", "on", ">secret", "~"+b.topic, "+ping", "+xadd").Err())
		p := connected(t, b.publisherAt(strings.Replace(b.url, "//", "//relay:secret@", 1), Config{})) // no INFO, CONFIG or EVAL
		r := publish(t, t.Context(), p, message(b.topic, ""), message("forbidden", ""), message(b.topic, ""))
		want(t, r[0], taken)
		want(t, r[1], permissionDenied)
		want(t, r[2], taken)
	},
	refused: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		b.must(b.client.Do(t.Context(), "xadd", b.topic, "18446744073709551615-18446744073709551615", "a", "b").Err())
		want(t, publish(t, t.Context(), connected(t, b.publisher(Config{})), message(b.topic, ""))[0], refused)
	},

	outOfMemory: onOwn(outOfMemory, "maxmemory",
		func(b *bench) { b.set("maxmemory", "1") }, func(b *bench) { b.set("maxmemory", "0") }),
	readOnly: onOwn(readOnly, "master",
		func(b *bench) { b.must(b.client.Do(b.tb.Context(), "replicaof", "127.0.0.1", "1").Err()) },
		func(b *bench) { b.must(b.client.Do(b.tb.Context(), "replicaof", "no", "one").Err()) }),
	diskFailed: onOwn(diskFailed, "disk",
		func(b *bench) { // a folder stands where the snapshot goes
			b.set("save", "3600 1000000")
			dir, err := b.client.ConfigGet(b.tb.Context(), "dir").Result()
			b.must(err)
			b.must(os.Mkdir(dir["dir"]+"/dump.rdb", 0o700))
			b.must(b.client.BgSave(b.tb.Context()).Err())
			until(b.tb, "the snapshot has failed", func() bool {
				return strings.Contains(b.client.Info(b.tb.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
			})
		},
		func(b *bench) { b.set("save", "") }),
	noReplicas: onOwn(noReplicas, "replicas",
		func(b *bench) { b.set("min-replicas-to-write", "1") }, func(b *bench) { b.set("min-replicas-to-write", "0") }),
	busy: onOwn(busy, "SCRIPT KILL",
		func(b *bench) {
			b.set("busy-reply-threshold", "1")
			go func() { _ = b.client.Eval(context.Background(), "while true do end", nil).Err() }()
			until(b.tb, "the script runs", func() bool { return strings.HasPrefix(fmt.Sprint(b.client.Ping(b.tb.Context()).Err()), "BUSY") })
		},
		func(b *bench) { b.must(b.client.ScriptKill(b.tb.Context()).Err()) }),
	loading: nil, // *
	notConnected: func(t *testing.T) {
		b := newServer(t, "--requirepass", "secret").bench()
		for _, url := range []string{fmt.Sprintf("redis://127.0.0.1:%d", brokertest.FreePort()), b.url, strings.Replace(b.url, "//", "//:wrong@", 1)} {
			p := b.publisherAt(url, Config{})
			var err error
			until(t, "the first try has failed", func() bool {
				err = p.Check(t.Context())
				return err != nil && !strings.Contains(err.Error(), errConnecting.Error())
			})
			want(t, publish(t, t.Context(), p, message("a", ""))[0], notConnected)
			if outbox.Hint(err) == "" || strings.Contains(err.Error()+outbox.Hint(err), "wrong@") {
				t.Errorf("%s: Check says %v (hint %q)", url, err, outbox.Hint(err))
			}
		}
		p := connected(t, b.publisherAt(strings.Replace(b.url, "//", "//:secret@", 1), Config{}))
		want(t, publish(t, t.Context(), p, message("a", ""))[0], taken)
	},
	notSent: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		want(t, publish(t, ended, connected(t, b.publisher(Config{})), message(b.topic, ""))[0], notSent)
	},
	closed: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		p := connected(t, b.publisher(Config{}))
		closeNow(p)
		want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], closed)
	},

	staleOwner: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		c := Config{Fence: strings.ReplaceAll(b.topic, ".", "-")}
		old, young := connected(t, b.publisher(c)), connected(t, b.publisher(c))
		at := func(lineage string, epoch int64, partition int) broker.Envelope {
			m := message(b.topic, "")
			m.Lineage, m.Epoch, m.Partition = lineage, epoch, partition
			return m
		}
		want(t, publish(t, t.Context(), old, at("1", 9, 3))[0], taken)
		want(t, publish(t, t.Context(), young, at("1", 10, 3))[0], taken)
		r := publish(t, t.Context(), old, at("1", 9, 3), at("1", 9, 4), at("1", 10, 3))
		want(t, r[0], staleOwner)
		want(t, r[1], taken) // another partition
		want(t, r[2], taken) // the same owner
		if r[0].After == 0 {
			t.Error("the answer does not say for how long to wait")
		}
		want(t, publish(t, t.Context(), young, at("2", 1, 3))[0], taken) // a database whose numbering has begun anew
		want(t, publish(t, t.Context(), old, at("1", 1<<62, 3))[0], staleOwner)
		if n := b.count(); n != 5 {
			t.Errorf("the stream has %d entries, want 5", n)
		}
		left, err := b.client.PTTL(t.Context(), fenceKey(c.Fence, 3)).Result()
		if b.must(err); left <= 59*time.Minute || left > time.Hour {
			t.Errorf("the fence is forgotten in %s, want 1h", left)
		}
		b.must(b.client.Del(t.Context(), fenceKey(c.Fence, 3)).Err()) // as its end does
		want(t, publish(t, t.Context(), old, at("1", 9, 3))[0], taken)
		b.must(b.client.Del(t.Context(), fenceKey(c.Fence, 3), fenceKey(c.Fence, 4)).Err())
	},
	tooManyPending: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		r := publish(t, t.Context(), connected(t, b.publisher(Config{MaxPending: 2})), messages(3, b.topic)...)
		want(t, r[0], taken)
		want(t, r[2], tooManyPending)
	},

	connectionLost: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		x.Freeze()
		before := p.written()
		answers := start(p, messages(3, b.topic))
		p.untilWritten(t, before)
		x.Stop()
		for _, r := range answers(t) {
			want(t, r, connectionLost)
		}
		x.Thaw()
	},
	noAnswer: func(t *testing.T) {
		s := newServer(t)
		p := connected(t, s.bench().publisher(Config{AckTimeout: 100 * time.Millisecond}))
		s.signal(syscall.SIGSTOP)
		want(t, publish(t, t.Context(), p, message("a", ""))[0], noAnswer)
		s.signal(syscall.SIGCONT)
		until(t, "a message is taken", func() bool { // on a slow machine the connection was given up meanwhile
			return publish(t, t.Context(), p, message("a", ""))[0].Outcome == broker.Accepted
		})
	},
	contextEnded: func(t *testing.T) {
		b := newBench(t, commonURL(t))
		x, through := newProxy(t, b.url)
		p := connected(t, b.publisherAt(through, Config{}))
		x.Freeze()
		want(t, cutShort(t, p, message(b.topic, "")), contextEnded)
		x.Thaw()
	},
	notOnDisk: nil, // *
}

// start publishes a batch; the returned function waits for its answers.
func start(p *Publisher, batch []broker.Envelope) func(t *testing.T) []broker.Result {
	type one struct {
		i int
		r broker.Result
	}
	answers := make(chan one, len(batch))
	p.Publish(context.Background(), batch, func(i int, r broker.Result) { answers <- one{i, r} })
	return func(t *testing.T) []broker.Result {
		t.Helper()
		results := make([]broker.Result, len(batch))
		for range batch {
			select {
			case a := <-answers:
				results[a.i] = a.r
			case <-time.After(patience):
				t.Fatalf("answers are missing after %s", patience)
			}
		}
		return results
	}
}

// cutShort publishes a message, whose context ends once it is on its way.
func cutShort(t *testing.T, p *Publisher, m broker.Envelope) broker.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan broker.Result, 1)
	before := p.written()
	p.Publish(ctx, []broker.Envelope{m}, func(_ int, r broker.Result) { answer <- r })
	p.untilWritten(t, before)
	cancel()
	return <-answer
}

// written is how many bytes the connection has taken.
func (p *Publisher) written() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return 0
	}
	return p.link.socket.written.Load()
}

// untilWritten waits until messages have gone out.
func (p *Publisher) untilWritten(t *testing.T, before int64) {
	t.Helper()
	until(t, "messages are on their way", func() bool { return p.written() > before })
}

func TestEachSituationOnARealServer(t *testing.T) {
	t.Parallel()
	brokertest.RunTable(t, rows(), func(i int) func(*testing.T) { return drives[i] })
}

// The table of the documentation is the one that the publisher goes by.
func TestTheDocumentationHasTheTable(t *testing.T) {
	t.Parallel()
	brokertest.CheckTable(t, "../../docs/brokers/redis.md", rows(), *update)
}
