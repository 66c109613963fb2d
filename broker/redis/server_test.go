package redis

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

// What the tests of all brokers have in common.
const patience = brokertest.Patience

var (
	until    = brokertest.Until
	message  = brokertest.NewMessage
	messages = brokertest.NewMessages
	publish  = brokertest.Publish
)

// want compares one answer with a situation's row of the table.
func want(tb testing.TB, r broker.Result, s situation) {
	tb.Helper()
	brokertest.Want(tb, r, rows()[s])
}

// rows are the table.
func rows() []brokertest.Row {
	rows := make([]brokertest.Row, len(verdicts))
	for i, v := range verdicts {
		rows[i] = brokertest.Row{Outcome: v.outcome, Code: v.code, Seen: v.seen, Means: v.means}
	}
	return rows
}

// commonURL is the server that all tests share; each has streams of its own there.
func commonURL(tb testing.TB) string {
	tb.Helper()
	u := os.Getenv("ONWARD_TEST_REDIS_URL")
	if u == "" {
		tb.Skip(`ONWARD_TEST_REDIS_URL is not set: dev/services up redis && eval "$(dev/services env redis)"`)
	}
	return u
}

// bench is one test's stream, and a client that looks at it.
type bench struct {
	tb     testing.TB
	url    string
	topic  string
	client *redis.Client
}

func newBench(tb testing.TB, url string) *bench {
	tb.Helper()
	opt, err := redis.ParseURL(url)
	if err != nil {
		tb.Fatal(err)
	}
	opt.Protocol, opt.PoolSize = 2, 2
	b := &bench{tb: tb, url: url, topic: fmt.Sprintf("t%08x.orders", rand.Uint32()), client: redis.NewClient(opt)}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.client.Del(ctx, b.topic, b.other()).Err()
		_ = b.client.Close()
	})
	return b
}

// other is a key that is no stream.
func (b *bench) other() string { return b.topic + ".no-stream" }

func (b *bench) makeOther() {
	b.tb.Helper()
	b.must(b.client.Set(b.tb.Context(), b.other(), "text", 0).Err())
}

func (b *bench) must(err error) {
	b.tb.Helper()
	if err != nil {
		b.tb.Fatal(err)
	}
}

func (b *bench) set(setting, value string) {
	b.tb.Helper()
	b.must(b.client.ConfigSet(b.tb.Context(), setting, value).Err())
}

// read returns the entries of the stream, n at least.
func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		all, err := b.entries(ctx)
		if err != nil || len(all) >= n {
			return all, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

// entries are read raw: a map would hide a field that is there twice, and the order of fields.
func (b *bench) entries(ctx context.Context) (all []brokertest.Message, err error) {
	got, err := b.client.Do(ctx, "xrange", b.topic, "-", "+").Slice()
	for _, one := range got {
		entry := one.([]any)
		m := brokertest.Message{Position: entry[0].(string)}
		fields := entry[1].([]any)
		for i := 0; i < len(fields); i += 2 {
			name, value := fields[i].(string), fields[i+1].(string)
			if name == PayloadField {
				m.Payload = []byte(value)
			} else {
				m.Headers = append(m.Headers, brokertest.Header{Name: name, Value: value})
			}
		}
		all = append(all, m)
	}
	return all, err
}

func (b *bench) count() int {
	b.tb.Helper()
	n, err := b.client.XLen(b.tb.Context(), b.topic).Result()
	b.must(err)
	return int(n)
}

func (b *bench) publisher(c Config) *Publisher {
	b.tb.Helper()
	return b.publisherAt(b.url, c)
}

func (b *bench) publisherAt(url string, c Config) *Publisher {
	b.tb.Helper()
	p, err := Dial(url, Options{}, c)
	b.must(err)
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

// connected is a publisher that can be used.
func connected(tb testing.TB, p *Publisher) *Publisher {
	tb.Helper()
	var last error
	defer func() {
		if tb.Failed() {
			tb.Logf("the last Check: %v", last)
		}
	}()
	until(tb, "the publisher is connected", func() bool {
		last = p.Check(tb.Context())
		return last == nil
	})
	return p
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

// server is one of a test's own.
type server struct {
	tb   testing.TB
	dir  string
	port int
	cmd  *exec.Cmd
	log  bytes.Buffer
}

func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	if os.Getenv("ONWARD_TEST_REDIS_SERVER") == "" {
		tb.Skip(`ONWARD_TEST_REDIS_SERVER is not set: dev/services up redis && eval "$(dev/services env redis)"`)
	}
	s := &server{tb: tb, dir: tb.TempDir(), port: brokertest.FreePort()}
	tb.Cleanup(s.kill)
	s.start(settings...)
	s.untilUp()
	return s
}

func (s *server) untilUp() {
	s.tb.Helper()
	client := s.bench().client
	until(s.tb, "the server answers", func() bool {
		err := client.Ping(s.tb.Context()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

func (s *server) url() string { return fmt.Sprintf("redis://127.0.0.1:%d", s.port) }

func (s *server) bench() *bench { return newBench(s.tb, s.url()) }

func (s *server) start(settings ...string) {
	s.tb.Helper()
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
	}, settings...)
	s.cmd = exec.Command(os.Getenv("ONWARD_TEST_REDIS_SERVER"), args...) //nolint:gosec // the test's own server
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
}

// kill ends it as a crash does.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// signal stops it (SIGSTOP) and lets it go on (SIGCONT).
func (s *server) signal(which syscall.Signal) { _ = s.cmd.Process.Signal(which) }

// positionLess compares ids of entries.
func positionLess(a, b string) bool {
	x, y := parsePosition(a), parsePosition(b)
	return slices.Compare(x[:], y[:]) < 0
}

func parsePosition(id string) (parts [2]uint64) {
	ms, seq, _ := strings.Cut(id, "-")
	parts[0], _ = strconv.ParseUint(ms, 10, 64)
	parts[1], _ = strconv.ParseUint(seq, 10, 64)
	return parts
}

// newProxy makes one, and returns the publisher's address of it.
func newProxy(tb testing.TB, url string) (*brokertest.Proxy, string) {
	tb.Helper()
	x := brokertest.NewProxy(tb, strings.TrimPrefix(url, "redis://"))
	return x, "redis://" + x.Address()
}
