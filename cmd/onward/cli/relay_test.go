package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/leaktest"
)

// lines is an output that can be read while a run writes it.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// running is a relay that runs within the test.
type running struct {
	out, err lines
	stop     context.CancelFunc
	code     chan int
}

func (c console) start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{stop: stop, code: make(chan int, 1)}
	go func() {
		r.code <- Run(ctx, args, Environment{
			In: strings.NewReader(""), Out: &r.out, Err: &r.err, Environ: c.environ, Now: time.Now, ErrIsTerminal: c.terminal,
		})
	}()
	t.Cleanup(func() { stop(); <-r.code; r.code <- 0 })
	return r
}

// end stops the relay and returns its exit code.
func (r *running) end(t *testing.T) int {
	t.Helper()
	r.stop()
	return r.wait(t)
}

func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		r.code <- code
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("the relay does not end; it said\n%s", r.said())
		return 0
	}
}

// said is the end of what the relay said.
func (r *running) said() string {
	text := r.err.String()
	return text[max(0, len(text)-2000):]
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: does not happen", what)
		}
	}
}

// stream is a JetStream stream of the test's own.
type stream struct {
	js   jetstream.JetStream
	name string // and its only subject
}

func newStream(t *testing.T) *stream {
	t.Helper()
	url := os.Getenv("ONWARD_TEST_NATS_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_NATS_URL is not set: start the server with: dev/services up nats && eval "$(dev/services env)"`)
	}
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{js: js, name: "cli_" + strings.ToLower(strings.NewReplacer("/", "_").Replace(t.Name())) + fmt.Sprint(time.Now().UnixNano())}
	t.Cleanup(func() { _ = js.DeleteStream(context.Background(), s.name) })
	return s
}

func (s *stream) create(t *testing.T) {
	t.Helper()
	_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
}

// count is how many messages the stream has.
func (s *stream) count(t *testing.T) int {
	t.Helper()
	info, err := s.js.Stream(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.CachedInfo().State.Msgs) //nolint:gosec // a few
}

// relayTo adds the sink's settings to the console.
func (d *database) relayTo(s *stream) console {
	c := d.console
	c.environ = append(append([]string{}, c.environ...), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL="+os.Getenv("ONWARD_TEST_NATS_URL"),
		"ONWARD_SINKS__0__NATS__STREAM="+s.name, "ONWARD_SINKS__0__BREAKER__FIRST=50ms", "ONWARD_SINKS__0__BREAKER__MAX=100ms")
	return c
}

func (d *database) write(t *testing.T, topic string) {
	t.Helper()
	d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'k', 'T', 'hello')`, topic)
}

func TestRelayPublishesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	r := d.relayTo(s).start(t, "relay", "--json", "--set", "relay.name=shop-1")
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	eventually(t, "the relay says so", func() bool { return strings.Contains(r.out.String(), `"published":1`) })
	eventually(t, "it knows of no backlog", func() bool { return strings.Contains(r.out.String(), `"backlog":0,"lag_ms":0,`) })
	list := d.run(t, "relays", "list", "-o", "jsonl", "-q")
	if !strings.Contains(list.out, `"name":"shop-1"`) || !strings.Contains(list.out, `"partitions":4`) || !strings.Contains(list.out, `"live":true`) {
		t.Errorf("relays: %+v", list)
	}
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
	if got := d.run(t, "status", "-o", "json"); !strings.Contains(got.out, `"backlog": 0`) || !strings.Contains(got.out, `"published": 1,`) || !strings.Contains(got.out, `"relays_live": 0`) {
		t.Errorf("status afterwards: %s", got.out)
	}
	if got := d.run(t, "messages", "list", "--state", "published", "-q", "-o", "jsonl"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("published: %+v", got)
	}
	checkRounds(t, r.out.String())
	for line := range strings.Lines(r.err.String()) { // not a terminal: the log is JSON
		if !json.Valid([]byte(line)) {
			t.Errorf("the log says %q", line)
		}
	}
}

// checkRounds holds `relay --json` to the names that were agreed upon.
func checkRounds(t *testing.T, out string) {
	t.Helper()
	published, known := 0, false
	for line := range strings.Lines(out) {
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		var v struct {
			TS                                                                  time.Time
			Sink, Breaker                                                       string
			Duration_ms                                                         float64
			Read, Published, Duplicates, Retried, Parked, Dead, Settled, Relays int
			Partitions_owned, Partitions_gained, Partitions_released            int
			Backlog                                                             *int64
			Lag_ms                                                              *float64
		}
		if err := d.Decode(&v); err != nil || v.Sink != "orders" || v.Breaker != "closed" || v.TS.IsZero() {
			t.Errorf("%q: %v", line, err)
		}
		published += v.Published
		known = known || v.Backlog != nil && v.Lag_ms != nil
	}
	if !known {
		t.Errorf("no line has a backlog and a lag:\n%s", out)
	}
	if published != 1 {
		t.Errorf("the lines add up to %d published, want 1:\n%s", published, out)
	}
}

func TestRelayRefusesTablesThatItCannotUse(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), emptyDatabase(t)
	s.create(t)
	refused := func(what, code string) {
		t.Helper()
		r := d.relayTo(s).start(t, "relay")
		if got := r.wait(t); got != exitUsage || !strings.Contains(r.err.String(), code) || !strings.Contains(r.err.String(), "hint: ") {
			t.Errorf("%s: code %d; it said\n%s", what, got, r.said())
		}
	}
	refused("no tables", "onward/schema-missing")
	if r := d.run(t, "migrate", "up", "--partitions", "4"); r.code != exitDone {
		t.Fatalf("migrate: %+v", r)
	}
	d.exec(t, `UPDATE outbox_meta SET value = '1' WHERE name = 'schema'`)
	refused("old tables", "onward/schema-old")
	d.exec(t, `UPDATE outbox_meta SET value = '999' WHERE name = 'schema'`)
	refused("new tables", "onward/schema-new")
}

func TestRelayMigratesWhereItIsTold(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), emptyDatabase(t)
	s.create(t)
	r := d.relayTo(s).start(t, "relay", "--set", "database.auto_migrate=true")
	eventually(t, "the tables are made", func() bool { return strings.Contains(d.run(t, "migrate", "status").err, "up to date") })
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

func TestRelayWaitsForItsStream(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	d.write(t, s.name)
	r := d.relayTo(s).start(t, "relay")
	eventually(t, "it says what is missing", func() bool {
		return strings.Contains(r.err.String(), s.name) && strings.Contains(r.err.String(), `"level":"WARN"`)
	})
	s.create(t)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

func TestRelayWaitsForItsBroker(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	d.write(t, s.name)
	c := d.relayTo(s)
	c.environ = append(c.environ, "ONWARD_SINKS__0__URL=nats://user:topsecret@127.0.0.1:1")
	r := c.start(t, "relay")
	eventually(t, "it says so", func() bool { return strings.Contains(r.err.String(), `"level":"WARN"`) })
	if code := r.end(t); code != exitDone || strings.Contains(r.err.String(), "topsecret") {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

func TestRelayWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	c := console{terminal: true, environ: []string{
		"ONWARD_DATABASE__URL=postgres://app:topsecret@127.0.0.1:1/shop", "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL=nats://127.0.0.1:1", "ONWARD_SINKS__0__NATS__STREAM=X",
	}}
	r := c.start(t, "relay")
	eventually(t, "it says so", func() bool { return strings.Contains(r.err.String(), "waiting for the database") })
	if code := r.end(t); code != exitDone || strings.Contains(r.err.String(), "topsecret") || !strings.Contains(r.err.String(), "level=WARN") {
		t.Errorf("code %d; on a terminal it said\n%s", code, r.said())
	}
}

// binary builds the program, once; TestMain removes it.
var (
	binaryDir string
	binary    = sync.OnceValues(buildBinary)
)

func buildBinary() (file string, err error) {
	if binaryDir, err = os.MkdirTemp("", "onward-cli-test"); err != nil {
		return "", err
	}
	file = filepath.Join(binaryDir, "onward")
	if out, err := exec.Command("go", "build", "-o", file, "..").CombinedOutput(); err != nil { //nolint:gosec // our own words
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return file, nil
}

func TestMain(m *testing.M) {
	code := leaktest.Main(m)
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
	os.Exit(code)
}

// process starts the program as a process of its own.
func (c console) process(t *testing.T, args ...string) (*exec.Cmd, *lines) {
	t.Helper()
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, args...)
	cmd.Env = append(os.Environ(), c.environ...)
	said := &lines{}
	cmd.Stdout, cmd.Stderr = io.Discard, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, said
}

func exitOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			return e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		return 0
	case <-time.After(30 * time.Second):
		t.Fatal("the process does not end")
		return 0
	}
}

// The first SIGTERM settles and leaves; the process ends with 0.
func TestTheFirstSignalIsGraceful(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	cmd, said := d.relayTo(s).process(t, "relay")
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, cmd); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, said.String())
	}
	if got := d.run(t, "status", "-o", "json"); !strings.Contains(got.out, `"backlog": 0`) || !strings.Contains(got.out, `"relays_live": 0`) {
		t.Errorf("status afterwards: %s", got.out)
	}
}

// Whoever reads the log or the lines may go away or fall asleep: the relay goes on, and still ends gracefully.
func TestAReaderThatLeavesDoesNotEndTheRelay(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	reading, writing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "relay", "--json")
	cmd.Env = append(os.Environ(), d.relayTo(s).environ...)
	cmd.Stdout, cmd.Stderr = writing, writing
	if err := errors.Join(cmd.Start(), writing.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if n, err := reading.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("the relay says nothing: %v", err)
	}
	if err := reading.Close(); err != nil {
		t.Fatal(err)
	}
	d.exec(t, `INSERT INTO outbox_messages (topic, type, payload) VALUES ($1, 'T', ''), ('nowhere', 'T', '')`, s.name)
	eventually(t, "it has written into the broken pipe", func() bool { return one[int](t, d, `SELECT count(*) FROM outbox_dead`) == 1 })
	d.write(t, s.name)
	eventually(t, "the messages arrive", func() bool { return s.count(t) == 2 })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, cmd); code != exitDone {
		t.Errorf("code %d", code)
	}
}

// mute stands between a client and its server, and after silence lets no answer through.
type mute struct {
	net.Listener
	server string
	silent chan struct{} // closed: no answer goes through
}

func newMute(t *testing.T, url string) *mute {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mute{Listener: l, server: strings.TrimPrefix(url, "nats://"), silent: make(chan struct{})}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go m.serve(client)
		}
	}()
	return m
}

func (m *mute) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", m.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-m.silent:
		default:
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// A message that nobody answers for holds a graceful stop up; the second signal does not wait for it.
func TestTheSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s, d := newStream(t), newDatabase(t)
	s.create(t)
	c, between := d.relayTo(s), newMute(t, os.Getenv("ONWARD_TEST_NATS_URL"))
	c.environ = append(c.environ, "ONWARD_SINKS__0__URL=nats://"+between.Addr().String(), "ONWARD_SINKS__0__PUBLISH_TIMEOUT=60s")
	cmd, said := c.process(t, "relay")
	d.write(t, s.name)
	eventually(t, "the message arrives", func() bool { return s.count(t) == 1 })
	eventually(t, "it is settled", func() bool { return strings.Contains(d.run(t, "status", "-o", "json").out, `"backlog": 0`) })
	close(between.silent)
	d.write(t, s.name)
	eventually(t, "the next one arrives, and nobody says so", func() bool { return s.count(t) == 2 })
	for i := range 2 {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			eventually(t, "it begins to stop", func() bool { return strings.Contains(said.String(), "stopping") })
		}
	}
	if code := exitOf(t, cmd); code != exitSignalled {
		t.Errorf("code %d; it said\n%s", code, said.String())
	}
}
