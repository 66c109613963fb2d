package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// commonURL is the server that all tests share; each makes streams of its own there.
func commonURL(tb testing.TB) string {
	tb.Helper()
	u := os.Getenv("ONWARD_TEST_NATS_URL")
	if u == "" {
		tb.Skip(`ONWARD_TEST_NATS_URL is not set: dev/services up nats && eval "$(dev/services env nats)"`)
	}
	return u
}

// server is a server that one test starts, stops, freezes and configures.
type server struct {
	tb      testing.TB
	program string
	dir     string
	port    int
	extra   string // more lines of the configuration

	mu      sync.Mutex
	command *exec.Cmd
	exited  chan struct{}
}

// newServer starts one with JetStream; extra are more lines of its configuration.
func newServer(tb testing.TB, extra string) *server {
	tb.Helper()
	s := prepareServer(tb, extra)
	s.start()
	return s
}

// prepareServer gives a server its address, and does not start it.
func prepareServer(tb testing.TB, extra string) *server {
	tb.Helper()
	program := os.Getenv("ONWARD_TEST_NATS_SERVER")
	if program == "" {
		tb.Skip(`ONWARD_TEST_NATS_SERVER is not set: dev/services up nats && eval "$(dev/services env nats)"`)
	}
	s := &server{tb: tb, program: program, dir: tb.TempDir(), port: freePort(), extra: extra}
	tb.Cleanup(s.kill)
	return s
}

// freePort is below the range of outgoing connections.
func freePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
}

func (s *server) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.port) }

func (s *server) configure() string {
	s.tb.Helper()
	text := fmt.Sprintf("listen: 127.0.0.1:%d\n%s\n", s.port, s.extra)
	if !strings.Contains("\n"+s.extra, "\njetstream") {
		text += fmt.Sprintf("jetstream { store_dir: %q }\n", filepath.Join(s.dir, "data"))
	}
	file := filepath.Join(s.dir, "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	return file
}

// start runs the server and waits until it answers.
func (s *server) start() {
	s.tb.Helper()
	s.launch()
	s.await()
}

func (s *server) launch() {
	s.tb.Helper()
	command := exec.Command(s.program, "-c", s.configure(), "-l", filepath.Join(s.dir, "log"))
	if err := command.Start(); err != nil {
		s.tb.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(exited)
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command, s.exited = command, exited
}

func (s *server) await() {
	s.tb.Helper()
	until(s.tb, "the server answers", func() bool {
		select {
		case <-s.exited:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			s.tb.Fatalf("the server ended:\n%s", log)
		default:
		}
		return s.info() != ""
	})
}

// info is the line with which the server introduces itself, "" while nobody answers.
func (s *server) info() string {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.port), time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, "CONNECT {\"verbose\":false}\r\nPING\r\n")
	var all []byte
	buffer := make([]byte, 4096)
	for {
		n, err := c.Read(buffer)
		all = append(all, buffer[:n]...)
		if text := string(all); strings.Contains(text, "PONG") || strings.Contains(text, "-ERR 'Auth") {
			return text
		}
		if err != nil {
			return ""
		}
	}
}

// signal sends one to the process and waits for its end where it ends.
func (s *server) signal(sig syscall.Signal, ends bool) {
	s.mu.Lock()
	command, exited := s.command, s.exited
	s.mu.Unlock()
	if command == nil {
		return
	}
	_ = command.Process.Signal(sig)
	if ends {
		<-exited
	}
}

// kill ends the process at once; stop lets it say goodbye; freeze makes it silent until thaw.
func (s *server) kill() { s.signal(syscall.SIGKILL, true) }
func (s *server) stop() { s.signal(syscall.SIGTERM, true) }
func (s *server) thaw() { s.signal(syscall.SIGCONT, false) }
func (s *server) freeze() {
	s.tb.Helper()
	s.signal(syscall.SIGSTOP, false)
	until(s.tb, "the server stands still", func() bool {
		state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(s.command.Process.Pid)).Output()
		return err == nil && strings.HasPrefix(string(state), "T")
	})
}

// reload changes the configuration while the server runs, and waits until its introduction has the text.
func (s *server) reload(extra, introduction string) {
	s.tb.Helper()
	s.extra = extra
	s.configure()
	s.signal(syscall.SIGHUP, false)
	until(s.tb, "the server has reloaded", func() bool { return strings.Contains(s.info(), introduction) })
}

// bench is one test's stream on a server, and a connection that looks at it.
type bench struct {
	tb     testing.TB
	url    string
	stream string
	topic  string
	nc     *natsgo.Conn
	js     jetstream.JetStream
	config jetstream.StreamConfig
}

// newBench makes a stream with a name of its own; change may alter it. The topic is its only subject at first.
func newBench(tb testing.TB, url string, change func(*jetstream.StreamConfig)) *bench {
	tb.Helper()
	b := prepareBench(tb, url)
	if change != nil {
		change(&b.config)
	}
	b.makeStream()
	return b
}

// prepareBench makes no stream yet.
func prepareBench(tb testing.TB, url string, options ...natsgo.Option) *bench {
	tb.Helper()
	name := fmt.Sprintf("T%08X", rand.Uint32())
	b := &bench{tb: tb, url: url, stream: name, topic: strings.ToLower(name) + ".orders"}
	b.config = jetstream.StreamConfig{Name: name, Subjects: []string{strings.ToLower(name) + ".>"}, Storage: jetstream.MemoryStorage, Duplicates: 2 * time.Minute}
	var err error
	options = append([]natsgo.Option{natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20 * time.Millisecond), natsgo.RetryOnFailedConnect(true)}, options...)
	if b.nc, err = natsgo.Connect(url, options...); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.nc.Close)
	if b.js, err = jetstream.New(b.nc); err != nil {
		tb.Fatal(err)
	}
	return b
}

func (b *bench) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.tb.Cleanup(cancel)
	return ctx
}

// makeStream makes the stream, and again after it was deleted.
func (b *bench) makeStream() {
	b.tb.Helper()
	var last error
	defer func() {
		if b.tb.Failed() {
			b.tb.Logf("make the stream: %v", last)
		}
	}()
	until(b.tb, "the stream is made", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := b.js.CreateStream(ctx, b.config)
		last = err
		if apiErr := (*jetstream.APIError)(nil); errors.As(err, &apiErr) && apiErr.Code < 500 {
			b.tb.Fatal(err)
		}
		return err == nil
	})
	b.tb.Cleanup(func() { // also when the server is gone
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if b.nc.IsConnected() {
			_ = b.js.DeleteStream(ctx, b.stream)
		}
	})
}

func (b *bench) deleteStream() {
	b.tb.Helper()
	if err := b.js.DeleteStream(b.context(), b.stream); err != nil {
		b.tb.Fatal(err)
	}
}

func (b *bench) updateStream(change func(*jetstream.StreamConfig)) {
	b.tb.Helper()
	change(&b.config)
	if _, err := b.js.UpdateStream(b.context(), b.config); err != nil {
		b.tb.Fatal(err)
	}
}

// safe are options that a publisher's connection needs.
func safe(more ...natsgo.Option) []natsgo.Option {
	quiet := natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {})
	return append([]natsgo.Option{natsgo.ReconnectBufSize(-1), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20 * time.Millisecond), natsgo.ReconnectJitter(0, 0), quiet}, more...)
}

// publisher makes one on a connection of the test's own.
func (b *bench) publisher(c Config, options ...natsgo.Option) *Publisher {
	b.tb.Helper()
	nc, err := natsgo.Connect(b.url, safe(options...)...)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(nc.Close)
	if c.Stream == "" {
		c.Stream = b.stream
	}
	p, err := NewPublisher(nc, c)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

// dialed makes one with a connection of its own.
func (b *bench) dialed(o Options, configs ...Config) *Publisher {
	b.tb.Helper()
	o.More = append(o.More, natsgo.ReconnectWait(20*time.Millisecond), natsgo.ReconnectJitter(0, 0))
	c := append(configs, Config{})[0]
	c.Stream = b.stream
	p, err := Dial(b.url, o, c)
	if err != nil {
		b.tb.Fatal(err)
	}
	b.tb.Cleanup(func() { closeNow(p) })
	return p
}

func closeNow(p *Publisher) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.Close(ctx)
}

// read returns the stream's messages, n at least.
func (b *bench) read(ctx context.Context, n int) ([]brokertest.Message, error) {
	var ms []brokertest.Message
	for seq := uint64(1); ; {
		s, err := b.js.Stream(ctx, b.stream)
		if err != nil {
			if ctx.Err() != nil {
				return ms, ctx.Err()
			}
			continue // the server is on its way back
		}
		for last := s.CachedInfo().State.LastSeq; seq <= last; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				break
			}
			ms = append(ms, arrived(m))
		}
		if len(ms) >= n {
			return ms, nil
		}
	}
}

func arrived(m *jetstream.RawStreamMsg) brokertest.Message {
	out := brokertest.Message{Payload: m.Data, Position: strconv.FormatUint(m.Sequence, 10)}
	for name, values := range m.Header {
		for _, value := range values {
			out.Headers = append(out.Headers, brokertest.Header{Name: name, Value: value})
		}
	}
	return out
}

// count is how many messages the stream has.
func (b *bench) count() int {
	b.tb.Helper()
	s, err := b.js.Stream(b.context(), b.stream)
	if err != nil {
		b.tb.Fatal(err)
	}
	return int(s.CachedInfo().State.Msgs)
}
