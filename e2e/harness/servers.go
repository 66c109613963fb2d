package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	natsgo "github.com/nats-io/nats.go"
)

// Server is a server of one test's own, which the test may kill and start again on its port and data.
type Server struct {
	URL   string
	name  string
	start func() *exec.Cmd
	ping  func(ctx context.Context) error
	log   string // file; empty: none
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts the server and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	s.cmd = s.start()
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(s.cmd, s.ended)
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			log, _ := os.ReadFile(s.log)
			return fmt.Errorf("%s ended: %w\n%s", s.name, err, log[max(0, len(log)-1000):])
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", s.name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop sends a signal and waits for the end.
func (s *Server) Stop(sig syscall.Signal) error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, sig)
	select {
	case <-s.ended:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s did not end on %v", s.name, sig)
	}
}

// Signal sends a signal to the server's first process.
func (s *Server) Signal(sig syscall.Signal) error { return s.cmd.Process.Signal(sig) }

// Ended reports whether the server has ended, by itself or not.
func (s *Server) Ended() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Immediate is PostgreSQL's immediate shutdown: no checkpoint, crash recovery at the next start.
const Immediate = syscall.SIGQUIT

// Kill ends the server and every process of it at once, as a crash of the machine would, but for what the system has taken over.
func (s *Server) Kill() error {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.cmd.Process.Pid, s.cmd.Process.Pid))
	if err != nil {
		return err
	}
	_ = syscall.Kill(s.cmd.Process.Pid, syscall.SIGSTOP) // it starts nothing again
	pids := strings.Fields(string(children))
	for _, child := range pids {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if err := s.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	for _, child := range pids { // while one is left, the server does not start again
		for range 500 {
			if _, err := os.Stat("/proc/" + child); err != nil {
				break
			}
			pause(context.Background(), 10*time.Millisecond)
		}
	}
	return nil
}

// NewPostgres makes a PostgreSQL cluster in dir, from the programs in ONWARD_TEST_POSTGRES_BIN, with durable settings.
func NewPostgres(dir string, settings ...string) (*Server, error) {
	return newPostgres(dir, settings, "initdb", "-U", "onward", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions")
}

// NewStandby makes a standby of a server that runs, under this name.
func NewStandby(dir, primary, name string, settings ...string) (*Server, error) {
	return newPostgres(dir, settings, "pg_basebackup", "-d", primary+"&application_name="+name, "-R", "-C", "-S", name, "-c", "fast", "-X", "stream")
}

// postgresIn says where PostgreSQL's programs are, and as whom they run in dir, which becomes theirs.
func postgresIn(dir string) (bin string, attr *syscall.SysProcAttr, err error) {
	if bin = os.Getenv("ONWARD_TEST_POSTGRES_BIN"); bin == "" {
		return "", nil, errors.New("ONWARD_TEST_POSTGRES_BIN is not set")
	}
	attr, err = asUser("postgres", dir)
	return bin, attr, err
}

func newPostgres(dir string, settings []string, create string, args ...string) (*Server, error) {
	bin, attr, err := postgresIn(dir)
	if err != nil {
		return nil, err
	}
	if err := runAs(attr, dir, filepath.Join(bin, create), append(args, "-D", filepath.Join(dir, "data"))...); err != nil {
		return nil, err
	}
	return postgresOn(dir, bin, attr, settings)
}

func runAs(attr *syscall.SysProcAttr, dir, program string, args ...string) error {
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.SysProcAttr, cmd.Dir = attr, dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}

// postgresOn is the server of the data in dir.
func postgresOn(dir, bin string, attr *syscall.SysProcAttr, settings []string) (*Server, error) {
	data := filepath.Join(dir, "data")
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{name: "postgres", log: filepath.Join(dir, "log"), URL: fmt.Sprintf("postgres://onward@127.0.0.1:%d/postgres?sslmode=disable", port)}
	s.start = func() *exec.Cmd {
		args := []string{"-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200"}
		for _, setting := range settings {
			args = append(args, "-c", setting)
		}
		cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "postgres"), args...)
		cmd.SysProcAttr, cmd.Dir = attr, dir
		cmd.Stderr, _ = os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		return cmd
	}
	s.ping = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, s.URL)
		if err != nil {
			return err
		}
		return errors.Join(conn.Ping(ctx), conn.Close(ctx))
	}
	return s, nil
}

// NewNATS makes a NATS server with JetStream on disk in dir, from the program in ONWARD_TEST_NATS_SERVER.
func NewNATS(dir string) (*Server, error) { return NewNATSAs(dir, nil) }

// NewNATSAs is NewNATS for a server with users: its address names this one, who may do everything, and further arguments of
// the program the configuration that knows him.
func NewNATSAs(dir string, as *url.Userinfo, args ...string) (*Server, error) {
	bin := os.Getenv("ONWARD_TEST_NATS_SERVER")
	if bin == "" {
		return nil, errors.New("ONWARD_TEST_NATS_SERVER is not set")
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	at := url.URL{Scheme: "nats", User: as, Host: fmt.Sprintf("127.0.0.1:%d", port)}
	s := &Server{name: "nats-server", URL: at.String()}
	s.start = func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), bin, append([]string{"-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", filepath.Join(dir, "js")}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	s.ping = func(context.Context) error {
		nc, err := natsgo.Connect(s.URL, natsgo.Timeout(time.Second), natsgo.NoReconnect())
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := nc.JetStream()
		if err != nil {
			return err
		}
		_, err = js.AccountInfo()
		return err
	}
	return s, nil
}

// asUser returns the attributes that run a command as a user where we are root, and hands dir over to it: PostgreSQL does
// not run as root.
func asUser(name, dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}
	for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			break
		}
	}
	return attr, os.Chown(dir, int(uid), int(gid))
}

var portsGiven atomic.Int64

// freePort finds a port below the range of outgoing connections, and none twice: the server that one was found for may not
// listen yet.
func freePort() (int, error) {
	const first, ports = 20000, 12000
	for range ports {
		port := first + (os.Getpid()+int(portsGiven.Add(1)))%ports
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free port between 20000 and 32000")
}
