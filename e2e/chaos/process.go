package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a relay or a writer. One goroutine at a time starts and ends it; others may look at it.
type process struct {
	name  string
	log   string         // file, to which each start appends
	died  func(error)    // told when it ends and nobody asked for it
	input io.WriteCloser // of whoever starts it
	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	exit  error         // once ended
	meant bool          // its end was asked for
}

// start starts a program as this process.
func (p *process) start(cmd *exec.Cmd) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	if p.input, err = cmd.StdinPipe(); err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended, p.exit, p.meant = cmd, ended, nil, false
	go func() { // ends with the process
		exit := cmd.Wait()
		p.mu.Lock()
		p.exit = exit
		meant := p.meant
		p.mu.Unlock()
		if !meant && p.died != nil {
			p.died(exit)
		}
		close(ended)
	}()
	return nil
}

// pid is the number of the process that runs, and what is closed when it has ended; 0: none runs.
func (p *process) pid() (int, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0, nil
	}
	select {
	case <-p.ended:
		return 0, p.ended
	default:
		return p.cmd.Process.Pid, p.ended
	}
}

func (p *process) running() bool {
	pid, _ := p.pid()
	return pid > 0
}

// expect says that it is asked to end.
func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.meant = true
}

// kill ends it without goodbye, and waits until it is gone.
func (p *process) kill() {
	pid, ended := p.pid()
	if pid == 0 {
		return
	}
	p.expect()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-ended
}

func (p *process) signal(s syscall.Signal) error {
	pid, _ := p.pid()
	if pid == 0 {
		return fmt.Errorf("%s is not running", p.name)
	}
	return syscall.Kill(pid, s)
}

// terminate asks it to finish, by SIGTERM, and waits; one that does not is killed.
func (p *process) terminate(patience time.Duration) error {
	if !p.running() {
		return nil
	}
	p.expect()
	_ = p.signal(syscall.SIGTERM)
	return p.await(patience)
}

// finish asks it to finish, by the end of its input, and waits.
func (p *process) finish(patience time.Duration) error {
	if !p.running() {
		return nil
	}
	p.expect()
	_ = p.input.Close()
	return p.await(patience)
}

func (p *process) await(patience time.Duration) error {
	_, ended := p.pid()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		p.kill()
		return fmt.Errorf("%s did not stop within %v", p.name, patience)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit != nil {
		return fmt.Errorf("%s ended with an error when it was stopped: %w", p.name, p.exit)
	}
	return nil
}

// peak is the most memory that the process has had, in bytes; 0: it is gone.
func (p *process) peak() int64 {
	pid, _ := p.pid()
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kib, _ := strconv.ParseInt(number, 10, 64)
	return kib << 10
}

// relayProcess is an `onward relay`, with a link of its own to each server that it has to do with.
type relayProcess struct {
	process
	program, config string
	database        *Link // nil: a file
	broker          *Link // nil: a file
}

func (r *relayProcess) begin() error {
	cmd := exec.CommandContext(context.Background(), r.program, "relay", "--ends-with-input", "--config", r.config)
	return r.start(cmd)
}

// settings are what all relays of a run are configured with.
type settings struct {
	lease, publishTimeout, retention time.Duration
	window, page, maxPayload         int
	once                             string // no_duplicates; empty: off
	stream, exchange                 string // one of them, or none
	topicTemplate                    string // empty: as it is
	block                            string // of settings of the broker's own
}

// configuration is the file of one relay.
func (s *settings) configuration(name, database, sink string) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("database:\n  url: %q\n  max_connections: 4\n  statement_timeout: 10s", database)
	line("relay:\n  name: %s\n  lease: %v\n  heartbeat: %v\n  page: %d\n  shutdown_grace: 20s", name, s.lease, s.lease/4, s.page)
	line("sinks:\n  - name: %s\n    url: %q\n    window: {messages: %d}\n    publish_timeout: %v", sinkName, sink, s.window, s.publishTimeout)
	line("    retry: {first: 50ms, max: 500ms, attempts: 0}\n    breaker: {first: 50ms, max: 500ms}")
	if s.stream != "" {
		line("    nats: {stream: %s}", s.stream)
	}
	if s.topicTemplate != "" {
		line("    topic_template: '%s'", s.topicTemplate)
	}
	if s.exchange != "" {
		line("    rabbitmq: {exchange: %s}", s.exchange)
	}
	if s.block != "" {
		line("    %s", s.block)
	}
	if s.once != "" {
		line("    no_duplicates: %s", s.once)
	}
	line("topics:\n  - match: \">\"\n    max_payload: %d", s.maxPayload)
	line("retention:\n  published: %v", s.retention)
	line("telemetry:\n  log: {format: json}")
	return []byte(b.String())
}

// newRelay makes a relay that is not started yet, the number'th. database is a direct address.
func newRelay(ctx context.Context, dir, program, name string, s *settings, database string, b *broker, number int) (r *relayProcess, err error) {
	r = &relayProcess{process: process{name: name, log: filepath.Join(dir, "logs", name+".log")}, program: program, config: filepath.Join(dir, name+".yaml")}
	if strings.HasPrefix(database, "postgres:") {
		if r.database, err = NewLink(ctx, database); err != nil {
			return nil, err
		}
		database = r.database.URL
	}
	broker := b.url
	if b.kafka != nil {
		r.broker, err = b.door(ctx, number)
	} else if b.server != nil {
		r.broker, err = NewLink(ctx, broker)
	}
	if err != nil {
		return nil, err
	}
	if r.broker != nil {
		broker = r.broker.URL
	}
	if b.kind == ServiceBus { // its address is in the block
		own := *s
		if own.block, err = serviceBusBlock(broker); err != nil {
			return nil, err
		}
		s, broker = &own, "servicebus:"
	}
	return r, os.WriteFile(r.config, s.configuration(name, database, broker), 0o600)
}

func (r *relayProcess) close() {
	r.kill() // which works on a stopped process, too
	for _, l := range []*Link{r.database, r.broker} {
		if l != nil {
			l.Close()
		}
	}
}

// writerOf is a writer process.
type writerOf struct {
	process
	writerConfig
	link *Link // nil: a file
	runs uint64
}

// begin starts this program again, as a writer.
func (w *writerOf) begin() error {
	c := w.writerConfig
	w.runs++
	c.Seed += w.runs << 32 // or it would write the same again
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = append(os.Environ(), writerProcess+"="+string(text))
	return w.start(cmd)
}

// ask has the writer write special messages.
func (w *writerOf) ask(kind string, n int) error {
	if !w.running() {
		return errors.New("the writer is not running")
	}
	_, err := fmt.Fprintln(w.input, kind, n)
	return err
}

func (w *writerOf) close() {
	w.kill()
	if w.link != nil {
		w.link.Close()
	}
}
