package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// relayProcess is an `onward relay` of its own, a child of this process. What it says, the board is told.
type relayProcess struct {
	name    string
	command func(args ...string) *exec.Cmd
	config  string // file
	only    string // the sink that it serves; empty: all
	board   *board

	cmd   *exec.Cmd
	alive io.Closer // the child ends when this is closed, and so also when this process is no more
	ended chan struct{}
	exit  error // once ended
}

// start starts the process. The one before must have ended.
func (r *relayProcess) start() error {
	args := []string{"relay", "--json", "--ends-with-input", "--config", r.config, "--set", "relay.name=" + r.name}
	if r.only != "" {
		args = append(args, "--sink", r.only)
	}
	r.cmd = r.command(args...)
	in, err := r.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := r.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", r.name, err)
	}
	r.alive, r.ended = in, make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { eachLine(out, r.round) })
	reading.Go(func() { eachLine(log, r.said) })
	go func() { // ends with the process
		defer close(r.ended)
		reading.Wait()
		r.exit = r.cmd.Wait()
	}()
	return nil
}

// eachLine calls f with each JSON object, and passes by what is none.
func eachLine(from io.Reader, f func(line []byte)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, from) // a line that was too long: the child must not wait for us
}

// round takes a line of `relay --json`.
func (r *relayProcess) round(line []byte) {
	var said struct {
		Sink       string `json:"sink"`
		Published  int    `json:"published"`
		Duplicates int    `json:"duplicates"`
		Breaker    string `json:"breaker"`
	}
	if json.Unmarshal(line, &said) == nil {
		r.board.published(r.name, said.Sink, said.Published, said.Duplicates, said.Breaker == "open")
	}
}

// said takes a line of the relay's log.
func (r *relayProcess) said(line []byte) {
	var said struct {
		Level string `json:"level"`
		Text  string `json:"msg"`
		Code  string `json:"code"`
		ID    string `json:"id"`
		Error string `json:"error"`
	}
	if json.Unmarshal(line, &said) != nil {
		said.Text = string(line)
	}
	r.board.said(r.name, said.Text, said.Error)
	if said.Text == "dead letter" {
		r.board.happened(Bad, "dead letter %s in the hands of %s (%s): its key waits, every other key goes on", short(said.ID), r.name, strings.TrimPrefix(said.Code, "onward/"))
	}
}

// short is enough of an id to tell it from others here.
func short(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}

// kill ends the process without goodbye.
func (r *relayProcess) kill() error {
	return r.end(os.Kill)
}

// stop asks the process to finish, and waits until it has; after some time it is ended all the same, with an error.
func (r *relayProcess) stop(ctx context.Context) error {
	if r.cmd == nil || !r.running() {
		return nil
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("stop %s: %w", r.name, err), r.kill())
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not stop in time", r.name), r.kill())
	}
	_ = r.alive.Close()
	if r.exit != nil {
		return fmt.Errorf("%s: %w", r.name, r.exit)
	}
	return nil
}

func (r *relayProcess) end(signal os.Signal) error {
	if r.cmd == nil || !r.running() {
		return nil
	}
	if err := r.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", r.name, err)
	}
	<-r.ended
	_ = r.alive.Close()
	return nil
}

func (r *relayProcess) running() bool {
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// configuration is the file that the relays of a run share.
func configuration(database, nats string, fault Fault) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Made by onward demo.")
	line("database:\n  url: %q", database)
	line("relay:\n  lease: %s\n  heartbeat: %s\n  shutdown_grace: 5s", lease, lease/5)
	line("sinks:")
	for _, region := range Regions {
		line("  - name: %s\n    url: %q\n    nats: {stream: %s}", region, nats, streamName)
		line("    topics: [orders.%s, orders.%s.*]", region, region)
		if fault == Crash {
			line("    settle: {every: 100ms} # seldom, so that there is something to repeat")
		}
		line("    breaker: {first: 200ms, max: 1s} # soon, because this outage is short")
	}
	line("telemetry:\n  log: {format: json}")
	return []byte(b.String())
}
