package failpoints

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

const (
	lease    = 800 * time.Millisecond
	window   = 20
	patience = time.Minute
)

// binary is the program with its failpoints.
var binary = sync.OnceValues(func() (string, error) {
	file := filepath.Join(os.TempDir(), fmt.Sprintf("onward-failpoints-%d", os.Getpid()))
	args := append([]string{"build", "-tags", "failpoint", "-o", file}, buildFlags...)
	out, err := exec.Command("go", append(args, "../../cmd/onward")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return file, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // they wait for leases to end, most of the time
	status := m.Run()
	_ = os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("onward-failpoints-%d", os.Getpid())))
	os.Exit(status)
}

// stage is one outbox, one stream, and the program at work between them.
type stage struct {
	t         *testing.T
	program   string
	config    string
	broker    string
	name      string // of the schema, the file and the topic
	topic     string
	stream    string
	collector *harness.Collector
	crashes   int
	running   []*process
}

func needed(t *testing.T, variable string) string {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		t.Skip(variable + ` is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
	}
	return v
}

func newStage(t *testing.T) *stage {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := hex.EncodeToString(b[:])
	s := &stage{
		t: t, program: program, config: filepath.Join(t.TempDir(), "onward.yaml"), broker: needed(t, "ONWARD_TEST_NATS_URL"),
		name: "fail_" + name, topic: "fail." + name, stream: "FAIL_" + strings.ToUpper(name),
	}
	s.must(harness.CreateStream(t.Context(), s.broker, s.stream, []string{s.topic}, 100*time.Millisecond))
	t.Cleanup(func() { _ = harness.DeleteStream(context.Background(), s.broker, s.stream) })
	s.collector, err = harness.Collect(t.Context(), s.broker, s.stream)
	s.must(err)
	t.Cleanup(s.collector.Close)
	t.Cleanup(func() {
		for _, p := range s.running {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// configure writes the program's settings; database and more are blocks of YAML.
func (s *stage) configure(database, more string) {
	s.t.Helper()
	text := fmt.Sprintf(`database:
%s
relay:
  lease: %v
  heartbeat: %v
sinks:
  - name: jetstream
    url: %q
    nats:
      stream: %s
    window:
      messages: %d
    breaker:
      first: 50ms
%s`, database, lease, lease/4, s.broker, s.stream, window, more)
	s.must(os.WriteFile(s.config, []byte(text), 0o600))
}

// process is the program at work.
type process struct {
	cmd   *exec.Cmd
	out   harness.Output
	err   error
	ended chan struct{}
}

// run starts the program with these failpoints.
func (s *stage) run(failpoints string, args ...string) *process {
	s.t.Helper()
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), s.program, append(args, "--config", s.config)...) // the test ends it by signals
	p.cmd.Env = append(os.Environ(), "ONWARD_FAILPOINTS="+failpoints)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.must(p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	s.running = append(s.running, p)
	return p
}

// relay starts a relay of this name.
func (s *stage) relay(name, failpoints string) *process {
	s.t.Helper()
	return s.run(failpoints, "relay", "--set", "relay.name="+name)
}

// alive says why a process that should run has ended.
func (s *stage) alive(p *process) error {
	select {
	case <-p.ended:
		return fmt.Errorf("the program has ended: %w\n%s", p.err, p.out.String())
	default:
		return nil
	}
}

// killed waits until the process has ended itself at the line.
func (s *stage) killed(p *process, line string) {
	s.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		<-p.ended
		s.t.Fatalf("the program has not come to %s\n%s", line, p.out.String())
	}
	exit := (*exec.ExitError)(nil)
	if !errors.As(p.err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() || !strings.Contains(p.out.String(), "failpoint "+line+": crash") {
		s.t.Fatalf("the program did not end itself at %s: %v\n%s", line, p.err, p.out.String())
	}
	s.crashes++
}

// stop ends the relays that still run as a service manager does, and wants them to have left in order.
func (s *stage) stop() {
	s.t.Helper()
	for _, p := range s.running {
		select {
		case <-p.ended:
			continue
		default:
		}
		s.until("it takes signals", func() bool { return strings.Contains(p.out.String(), "relay starts") })
		s.must(p.cmd.Process.Signal(syscall.SIGTERM))
		select {
		case <-p.ended:
		case <-time.After(patience):
			s.t.Fatalf("a relay does not stop\n%s", p.out.String())
		}
		if p.err != nil || strings.Contains(p.out.String(), "DATA RACE") {
			s.t.Errorf("a relay did not leave in order: %v\n%s", p.err, p.out.String())
		}
	}
}

// proven waits until everything of the ledger has arrived, and wants every promise kept: nothing lost, first copies in order,
// and no more duplicates than a window for each crash. Times are not looked at: a busy
// machine has its own.
func (s *stage) proven(ledger []harness.Entry) {
	s.t.Helper()
	if err := s.collector.WaitFor(s.t.Context(), len(ledger), patience); err != nil {
		s.t.Error(err)
	}
	s.stop()
	v := harness.Check(harness.Run{Ledger: ledger, Arrivals: s.collector.Arrivals()})
	s.t.Logf("%d sent, %d lost, %d made up, %d out of order, %d twice; crashes: %d", v.Sent, v.Lost, v.Phantom, v.Reordered, v.Duplicates, s.crashes)
	if v.Sent == 0 || v.Lost+v.Phantom+v.Reordered > 0 || v.Duplicates > window*s.crashes {
		s.t.Errorf("after %d crashes, with a window of %d: %v\n%s", s.crashes, window, v, v.Details())
		for _, p := range s.running {
			s.t.Log(p.out.String())
		}
	}
}
