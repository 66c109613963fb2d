package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// newProgram makes a server of a program that says what it says into the file log. Its URL has the scheme and a port of its own.
func newProgram(name, scheme, log string, command func(port int) *exec.Cmd, ping func(ctx context.Context, url string) error) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{name: name, URL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, port), log: log}
	s.start = func() *exec.Cmd {
		cmd := command(port)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		log, _ := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		cmd.Stdout, cmd.Stderr = log, log
		return cmd
	}
	s.ping = func(ctx context.Context) error { return ping(ctx, s.URL) }
	return s, nil
}

// NewRedis makes a Redis server with its data in dir and its log in a file, by the program in ONWARD_TEST_REDIS_SERVER, with settings such as "--maxmemory",
// "1mb". What it has answered is on its disk: the append-only file is written and synced before the answer goes out. With any other
// setting a server that is killed may lose what it has accepted, and that is no fault of whoever published it.
func NewRedis(dir, log string, settings ...string) (*Server, error) {
	program := os.Getenv("ONWARD_TEST_REDIS_SERVER")
	if program == "" {
		return nil, errors.New("ONWARD_TEST_REDIS_SERVER is not set")
	}
	return newProgram("redis-server", "redis", log, func(port int) *exec.Cmd {
		args := append([]string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
		}, settings...)
		return exec.CommandContext(context.Background(), program, args...) //nolint:gosec // the test's own server
	}, func(ctx context.Context, url string) error {
		client, err := RedisClient(url)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		return client.Ping(ctx).Err()
	})
}

// RedisClient is a client that tries each command once.
func RedisClient(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.Protocol, o.MaxRetries, o.PoolSize, o.DialTimeout = 2, -1, 3, time.Second
	return redis.NewClient(o), nil
}

// NewHTTP makes a server of HTTP that the command starts at a port, and that answers GET with 2xx once it is there.
func NewHTTP(name, log string, command func(port int) *exec.Cmd) (*Server, error) {
	return newProgram(name, "http", log, command, func(ctx context.Context, url string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode/100 != 2 {
			return errors.New(answer.Status)
		}
		return nil
	})
}
