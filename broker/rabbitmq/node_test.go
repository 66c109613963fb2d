package rabbitmq

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/broker/brokertest"
)

// node is a server that one test starts, stops, kills and configures.
type node struct {
	tb       testing.TB
	program  string
	dir      string
	port     int
	settings []string

	command *exec.Cmd
	output  bytes.Buffer
	exited  chan struct{}
}

// newNode starts one; settings are lines of its rabbitmq.conf.
func newNode(tb testing.TB, settings ...string) *node {
	tb.Helper()
	program := os.Getenv("ONWARD_TEST_RABBITMQ_SERVER")
	if program == "" {
		tb.Skip(`ONWARD_TEST_RABBITMQ_SERVER is not set: dev/services up rabbitmq && eval "$(dev/services env rabbitmq)" (with the package rabbitmq-server installed)`)
	}
	n := &node{tb: tb, program: program, dir: tb.TempDir(), port: brokertest.FreePort(), settings: settings}
	tb.Cleanup(n.kill)
	n.start()
	return n
}

func (n *node) url() string { return fmt.Sprintf("amqp://onward:onward@127.0.0.1:%d/", n.port) }

// start runs the node and waits until it takes connections.
func (n *node) start() {
	n.tb.Helper()
	n.launch()
	untilWithin(n.tb, nodeStart, "the node answers", func() bool {
		select {
		case <-n.exited:
			n.tb.Fatalf("the node ended:\n%s", n.output.String())
		default:
		}
		c, err := amqp.Dial(n.url())
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
}

func (n *node) launch() {
	n.tb.Helper()
	n.output.Reset()
	command := exec.Command(n.program, append([]string{"run", n.dir, fmt.Sprint(n.port)}, n.settings...)...)
	command.Stdout, command.Stderr = &n.output, &n.output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		n.tb.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(exited)
	}()
	n.command, n.exited = command, exited
}

// kill ends the node and its helpers at once.
func (n *node) kill() {
	_ = syscall.Kill(-n.command.Process.Pid, syscall.SIGKILL)
	<-n.exited
}

// control runs rabbitmqctl.
func (n *node) control(arguments ...string) {
	n.tb.Helper()
	out, err := exec.Command(n.program, append([]string{"ctl", n.dir, fmt.Sprint(n.port)}, arguments...)...).CombinedOutput()
	if err != nil {
		n.tb.Fatalf("rabbitmqctl %v: %v\n%s", arguments, err, out)
	}
}
