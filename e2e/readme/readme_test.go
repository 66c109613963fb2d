package readme

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/e2e/harness"
)

const root = "../.."

// servers are a database and a JetStream server of one test's own, because the README's commands use the names that a
// newcomer would: the schema public, the stream ORDERS.
func servers(t *testing.T) (database, broker string) {
	t.Helper()
	address := os.Getenv("ONWARD_TEST_POSTGRES_URL")
	if address == "" || os.Getenv("ONWARD_TEST_NATS_SERVER") == "" {
		t.Skip(`ONWARD_TEST_POSTGRES_URL and ONWARD_TEST_NATS_SERVER are not set: dev/services up && eval "$(dev/services env)"`)
	}
	name := fmt.Sprintf("readme_%d_%d", os.Getpid(), time.Now().UnixNano())
	onServer(t, address, "CREATE DATABASE "+name)
	t.Cleanup(func() { onServer(t, address, "DROP DATABASE "+name+" WITH (FORCE)") })
	server, err := harness.NewNATS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.Start(ready); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	return withDatabase(t, address, name), server.URL
}

func withDatabase(t *testing.T, address, name string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func onServer(t *testing.T, address, statement string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // a cleanup runs when the test's context has ended
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Error(err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// block is the first fenced block of a language after a mark.
func block(t *testing.T, page, mark, language string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, mark)
	if !found {
		t.Fatalf("the page has no %q", mark)
	}
	_, rest, _ = strings.Cut(rest, "```"+language+"\n")
	code, _, closed := strings.Cut(rest, "```\n")
	if !closed {
		t.Fatalf("the page has no %s block after %q", language, mark)
	}
	return code
}

func TestTheProgramOfTheREADMEIsTheExample(t *testing.T) {
	t.Parallel()
	program := block(t, text(t, root+"/README.md"), "## What a service writes", "go")
	_, body, _ := strings.Cut(text(t, "example_test.go"), "func Example() {")
	_, body, _ = strings.Cut(body, "\n")
	var indented strings.Builder
	for line := range strings.Lines(program) {
		if line != "\n" {
			indented.WriteString("\t")
		}
		indented.WriteString(line)
	}
	if body != indented.String()+"}\n" {
		t.Errorf("README.md and example_test.go differ:\n%s\n---\n%s", program, body)
	}
}

func TestTheProgramOfTheREADME(t *testing.T) {
	database, broker := servers(t)
	onServer(t, database, "CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL)")
	nc, err := nats.Connect(broker, nats.Options{Name: "readme"})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DATABASE_URL", database)
	t.Setenv("NATS_URL", broker)
	minute, stop := context.WithTimeout(t.Context(), time.Minute)
	ctx = minute //nolint:fatcontext // the example's context is a variable so that this test can end it
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Example()
	}()
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	message, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
	stop()
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if got := message.Headers().Get("onward-type") + " " + string(message.Data()); got != `OrderCreated {"total":1250}` {
		t.Errorf("the message is %q", got)
	}
}

// The first command of the README, with less time.
func TestTheDemoOfTheREADME(t *testing.T) {
	t.Parallel()
	built(t)
	demo := open(t, "demo", block(t, text(t, root+"/README.md"), "<!-- quick start: demo -->", "sh"), "ARGS=--for 2s --rate 50")
	demo.await(t, `^\s+lost +0\b`, `^The proof holds`)
}

// The quick start, block by block, each in a shell of its own as in a terminal of its own.
func TestTheQuickStartOfTheREADME(t *testing.T) {
	t.Parallel()
	database, broker := servers(t)
	page := text(t, root+"/README.md")
	port := freePort(t)
	built(t)
	terminal := func(name string) *session {
		script := block(t, page, "<!-- quick start: every terminal -->", "sh") + block(t, page, "<!-- quick start: "+name+" -->", "sh")
		// The one thing that is not as written: somebody else may be listening where the service would.
		script = strings.ReplaceAll(script, "go run ./examples/orders/order", "go run ./examples/orders/order --service http://127.0.0.1:"+port)
		script = strings.ReplaceAll(script, "go run ./examples/orders --migrate", "go run ./examples/orders --migrate --listen 127.0.0.1:"+port)
		// dev/services takes servers that are named in the environment.
		return open(t, name, script, "ONWARD_TEST_POSTGRES_URL="+database, "ONWARD_TEST_NATS_URL="+broker)
	}
	service := terminal("terminal 1")
	service.await(t, `orders listens`)
	relay := terminal("terminal 2")
	relay.await(t, `leases.*owned\W+\d`)
	look := terminal("terminal 3")
	look.await(t, `Onward-Receipt: `, `INSERT 0 1`, `OrderCreated .*total_cents`, `OrderNoted +by hand`)
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// build makes bin/onward, once: several shells that all make it would write one file at the same time.
var build = sync.OnceValue(func() error {
	program := exec.Command("make", "build")
	program.Dir = root
	if out, err := program.CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w: %s", err, out)
	}
	return nil
})

func built(t *testing.T) {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
}

// A session is a shell at work, and what it has printed.
type session struct {
	name  string
	lines chan string
	seen  strings.Builder
}

func open(t *testing.T, name, script string, env ...string) *session {
	t.Helper()
	shell := exec.Command("bash", "-euo", "pipefail", "-c", script)
	shell.Dir, shell.Env = root, append(os.Environ(), env...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it starts ends with it
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout, shell.Stderr = writer, writer
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	s := &session{name: name, lines: make(chan string)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.read(t.Context(), reader)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGTERM)
		_ = shell.Wait() // a signal's status
		<-read
		_ = reader.Close()
	})
	return s
}

func (s *session) read(ctx context.Context, from io.Reader) {
	defer close(s.lines)
	for scanner := bufio.NewScanner(from); scanner.Scan(); {
		select {
		case s.lines <- scanner.Text():
		case <-ctx.Done(): // nobody listens any more; read on, so that nobody blocks
		}
	}
}

// await reads until each pattern has matched a line.
func (s *session) await(t *testing.T, patterns ...string) {
	t.Helper()
	late := time.After(5 * time.Minute) // programs are built
	for len(patterns) > 0 {
		select {
		case line, open := <-s.lines:
			if !open {
				t.Fatalf("%s: ended before %q:\n%s", s.name, patterns, s.seen.String())
			}
			s.seen.WriteString(line + "\n")
			patterns = slices.DeleteFunc(patterns, func(p string) bool { return regexp.MustCompile(p).MatchString(line) })
		case <-late:
			t.Fatalf("%s: no %q:\n%s", s.name, patterns, s.seen.String())
		}
	}
}
