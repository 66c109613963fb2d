package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Node is a RabbitMQ server of one test's own.
type Node struct {
	*Server
	program, dir string
	port         int
}

// NewRabbitMQ makes a RabbitMQ node with its data in dir, by the program in ONWARD_TEST_RABBITMQ_SERVER; settings are lines of its
// configuration. Its user is onward.
func NewRabbitMQ(dir string, settings ...string) (*Node, error) {
	program := os.Getenv("ONWARD_TEST_RABBITMQ_SERVER")
	if program == "" {
		return nil, errors.New("ONWARD_TEST_RABBITMQ_SERVER is not set")
	}
	port, err := freePorts(3) // the node takes the two behind it as well
	if err != nil {
		return nil, err
	}
	n := &Node{program: program, dir: dir, port: port}
	n.Server = &Server{name: "rabbitmq", URL: fmt.Sprintf("amqp://onward:onward@127.0.0.1:%d/", port), log: filepath.Join(dir, "log")}
	n.start = func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), program, append([]string{"run", dir, strconv.Itoa(port)}, settings...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		log, _ := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		cmd.Stdout, cmd.Stderr = log, log
		return cmd
	}
	n.ping = func(context.Context) error {
		conn, err := amqp.Dial(n.URL)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return n, nil
}

// Control runs rabbitmqctl on the node.
func (n *Node) Control(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, n.program, append([]string{"ctl", n.dir, strconv.Itoa(n.port)}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("rabbitmqctl %v: %w\n%s", args, err, out)
	}
	return nil
}

// freePorts finds n free ports in a row, and returns the first.
func freePorts(n int) (int, error) {
	first, last := 0, 0
	for last == 0 || last-first+1 < n {
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		if port != last+1 {
			first = port
		}
		last = port
	}
	return first, nil
}
