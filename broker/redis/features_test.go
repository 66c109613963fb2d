package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

// A server that is killed under load, three times, loses nothing that was accepted, and no key gets out of order.
func TestAServerThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := s.bench()
	l := brokertest.StartLoad(t, connected(t, b.publisher(Config{})), b.topic, patience)
	for range 3 {
		l.Await(200)
		s.kill()
		s.start()
		s.untilUp()
	}
	l.Await(200)
	l.Stop()
	l.Arrived(b.read)
}

func TestStreamsAreTrimmedAsAsked(t *testing.T) {
	t.Parallel()
	url := commonURL(t)
	b := newBench(t, url)
	p := connected(t, b.publisher(Config{MaxLen: 3, ExactTrim: true}))
	publish(t, t.Context(), p, messages(10, b.topic)...)
	if n := b.count(); n != 3 {
		t.Errorf("exactly: %d entries, want 3", n)
	}
	b = newBench(t, url)
	p = connected(t, b.publisher(Config{MaxLen: 3}))
	publish(t, t.Context(), p, messages(450, b.topic)...)
	if n := b.count(); n < 3 || n > 200 { // nodes of 100
		t.Errorf("about: %d entries of 450, want 3 to 200", n)
	}
	for _, c := range []Config{{MaxAge: time.Hour, ExactTrim: true}, {MaxAge: time.Hour, ExactTrim: true, Fence: "trim"}} {
		b = newBench(t, url)
		old := time.Now().Add(-61 * time.Minute).UnixMilli()
		young := time.Now().Add(-59 * time.Minute).UnixMilli()
		for _, at := range []int64{old, young} {
			b.must(b.client.Do(t.Context(), "xadd", b.topic, fmt.Sprint(at, "-0"), "a", "b").Err())
		}
		want(t, publish(t, t.Context(), connected(t, b.publisher(c)), message(b.topic, ""))[0], taken)
		if n := b.count(); n != 2 {
			t.Errorf("by age: %d entries, want 2", n)
		}
	}
}

// WAITAOF came with 7.2: an older server is refused with the reason, at the check before anything is published.
func TestWaitAOFIsRefusedBelowRedis72(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	info := b.client.Info(t.Context(), "server").Val()
	p := b.publisher(Config{WaitAOF: true})
	if canWaitAOF(info) == nil {
		want(t, publish(t, t.Context(), connected(t, p), message(b.topic, ""))[0], taken)
		return
	}
	err := p.Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "needs Redis 7.2, and the server is 7.0") || !strings.Contains(outbox.Hint(err), "appendfsync always") {
		t.Errorf("Check says %v (hint %q)", err, outbox.Hint(err))
	}
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], notConnected)
	if n := b.count(); n != 0 {
		t.Errorf("the stream has %d entries, want none", n)
	}
}

func TestWhichServersKnowWaitAOF(t *testing.T) {
	t.Parallel()
	for info, knows := range map[string]bool{
		"# Server\r\nredis_version:7.0.15\r\nx:1\r\n": false, "redis_version:6.2.1\r\n": false, "redis_version:7.2.0\r\n": true,
		"redis_version:8.0.3\r\n": true, "redis_version:10.1.0\r\n": true, "": false, "redis_version:what\r\n": false,
	} {
		if err := canWaitAOF(info); (err == nil) != knows {
			t.Errorf("%q: %v", info, err)
		}
	}
}

// A server that loads its data refuses the login: messages wait, and go out when it has.
func TestAServerThatLoadsIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := s.bench()
	pipe := b.client.Pipeline()
	for i := range 400 {
		pipe.Set(t.Context(), fmt.Sprint("key-", i), "x", 0)
	}
	_, err := pipe.Exec(t.Context())
	b.must(err)
	b.must(b.client.Save(t.Context()).Err())
	s.kill()
	s.start("--appendonly", "no", "--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")
	p := b.publisher(Config{})
	var seen error
	until(t, "the server loads", func() bool {
		seen = p.Check(t.Context())
		return seen == nil || strings.Contains(seen.Error(), "LOADING")
	})
	if seen == nil || !strings.Contains(outbox.Hint(seen), "loads its data") {
		t.Fatalf("Check says %v (hint %q)", seen, outbox.Hint(seen))
	}
	m := message(b.topic, "")
	want(t, publish(t, t.Context(), p, m)[0], notConnected)
	until(t, "the server has loaded", func() bool {
		return publish(t, t.Context(), p, m)[0].Outcome == broker.Accepted
	})
}

// Close ends also while the server says nothing.
func TestCloseEndsWhileTheServerIsSilent(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t))
	x, through := newProxy(t, b.url)
	p := connected(t, b.publisherAt(through, Config{}))
	x.Freeze()
	before := p.written()
	answers := start(p, messages(2, b.topic))
	p.untilWritten(t, before)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_ = p.Close(ctx)
	for _, r := range answers(t) {
		want(t, r, contextEnded)
	}
	until(t, "its goroutines have ended", func() bool {
		again, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return p.Close(again) == nil
	})
	x.Thaw()
}

func TestAllFaultsOfTheSettingsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Dial("redis://localhost", Options{}, Config{
		MaxLen: -1, MaxAge: time.Millisecond, Fence: "A b", FenceFor: time.Second, AckTimeout: time.Millisecond, MaxPending: -1,
		Wire: broker.WireConfig{Format: "yaml", Key: "{{.Key}}"},
	})
	for _, word := range []string{"MaxLen is -1", "MaxAge is 1ms", "both set", `Fence is "A b"`, "FenceFor", "AckTimeout", "MaxPending", "format", "topic_template names"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not in: %v", word, err)
		}
	}
	for address, word := range map[string]string{
		"redis://u:geheim@%zz": "not a URL", "http://u:geheim@h": "none of redis, rediss", "redis://:geheim@": "names no host",
		"redis://:geheim@h1,h2": "several hosts", "redis://:geheim@h/#x": "fragment", "redis://:geheim@h?pool_size=1": "parameters", "redis://:geheim@h/x": "database",
	} {
		_, err := Dial(address, Options{}, Config{})
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, want %q", address, err, word)
		}
	}
	p, err := Dial("redis://localhost:1", Options{}, Config{MaxAge: 48 * time.Hour, ExactTrim: true, Fence: "shop", FenceFor: time.Minute, WaitAOF: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(p)
	if got := p.Describe(); got != "max_age=48h0m0s exact_trim=true fence=shop fence_for=1m0s wait_aof=true" {
		t.Errorf("Describe: %s", got)
	}
}
