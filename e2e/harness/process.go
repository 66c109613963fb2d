package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/broker/rabbitmq"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store/postgres"
)

// RelayConfig is what a relay process of the harness is started with.
type RelayConfig struct {
	Name           string        `json:"name"`
	Database       string        `json:"database"`
	Schema         string        `json:"schema"`
	Prefix         string        `json:"prefix"`
	NATS           string        `json:"nats"`
	Stream         string        `json:"stream"`
	Compare        bool          `json:"compare"`
	RabbitMQ       string        `json:"rabbitmq"` // where messages go instead; empty: to NATS
	Exchange       string        `json:"exchange"`
	PublishWhen    string        `json:"publish_when"`
	Lease          time.Duration `json:"lease"`
	Window         int           `json:"window"`
	PublishTimeout time.Duration `json:"publish_timeout"`
	RetryFirst     time.Duration `json:"retry_first"`
	RetryMax       time.Duration `json:"retry_max"`
	Attempts       int           `json:"attempts"`
	BreakerFirst   time.Duration `json:"breaker_first"`
	Fail           float64       `json:"fail"`   // share of publishes that fail without being sent
	Slow           time.Duration `json:"slow"`   // each publish takes that long
	Poison         string        `json:"poison"` // while this file exists, messages of the key "poison" fail
	SettleEvery    time.Duration `json:"settle_every"`
	Flight         string        `json:"flight"` // the file in which it counts what is in flight; empty: it does not
	Seed           uint64        `json:"seed"`
}

const relayProcess = "ONWARD_HARNESS_RELAY"

// Main is called first in TestMain: where this process was started as a relay it runs it and does not return.
func Main() {
	text := os.Getenv(relayProcess)
	if text == "" {
		return
	}
	var c RelayConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := runRelay(c); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runRelay(c RelayConfig) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flight, err := OpenFlight(c.Flight)
	if err != nil {
		return err
	}
	flight.ready() // from here on SIGTERM is a request
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	opened, err := postgres.Open(ctx, pool, postgres.Config{
		Schema: c.Schema, TablePrefix: c.Prefix, Logger: log, PublishWhen: postgres.PublishWhen(c.PublishWhen),
	})
	if err != nil && ctx.Err() != nil {
		return nil // told to stop before it had begun
	}
	if err != nil {
		return err
	}
	store := watched{Store: opened, flight: flight}
	pub, end, err := publisherOf(c)
	if err != nil {
		return err
	}
	defer end()
	sink := relay.Sink{
		Name: sinkOf(c), Publisher: &faulty{Publisher: pub, config: c, flight: flight, rng: rand.New(rand.NewPCG(c.Seed, 1))},
		PublishTimeout: c.PublishTimeout,
		Retry:          core.Retry{First: c.RetryFirst, Max: c.RetryMax, Attempts: c.Attempts},
		Breaker:        core.Breaker{First: c.BreakerFirst},
	}
	sink.Window.Messages, sink.Settle.Every = c.Window, c.SettleEvery
	r, err := relay.New(relay.Config{Store: store, Name: c.Name, Sinks: []relay.Sink{sink}, Lease: c.Lease, Logger: log})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// publisherOf makes the relay's publisher; end frees what it stands on.
func publisherOf(c RelayConfig) (p broker.Publisher, end func(), err error) {
	if c.RabbitMQ != "" {
		r, err := rabbitmq.Dial(c.RabbitMQ, rabbitmq.Options{Name: c.Name}, rabbitmq.Config{Exchange: c.Exchange})
		if err != nil {
			return nil, nil, err
		}
		return r, func() { _ = r.Close(context.Background()) }, nil
	}
	nc, err := nats.Connect(c.NATS, nats.Options{Name: c.Name})
	if err != nil {
		return nil, nil, err
	}
	n, err := nats.NewPublisher(nc, nats.Config{Stream: c.Stream, Compare: c.Compare})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return n, nc.Close, nil
}

func sinkOf(c RelayConfig) string {
	if c.RabbitMQ != "" {
		return "rabbitmq"
	}
	return "jetstream"
}

// relayHeader says which process published a message: a name may be given to several, one after the other.
const relayHeader = "harness-relay"

// faulty makes publishes fail or slow, counts them, and signs what it passes on.
type faulty struct {
	broker.Publisher
	config RelayConfig
	flight *Flight
	mu     sync.Mutex
	rng    *rand.Rand
}

func (f *faulty) Publish(ctx context.Context, batch []broker.Envelope, done func(int, broker.Result)) {
	if f.config.Slow > 0 {
		pause(ctx, f.config.Slow)
	}
	var good []broker.Envelope
	var index []int
	for i := range batch {
		f.mu.Lock()
		bad := f.rng.Float64() < f.config.Fail || f.poisoned(batch[i].Key)
		f.mu.Unlock()
		if bad {
			done(i, broker.Result{Outcome: broker.Retry, Code: "harness/fault", Err: fmt.Errorf("failed on purpose")})
			continue
		}
		good, index = append(good, f.signed(batch[i])), append(index, i)
	}
	if len(good) > 0 {
		f.flight.sent(len(good))
		f.Publisher.Publish(ctx, good, func(i int, r broker.Result) {
			f.flight.answered(r)
			done(index[i], r)
		})
	}
}

// signed is a copy: the record is the relay's.
func (f *faulty) signed(e broker.Envelope) broker.Envelope {
	record := *e.Record
	record.Headers = maps.Clone(record.Headers)
	if record.Headers == nil {
		record.Headers = map[string]string{}
	}
	record.Headers[relayHeader] = fmt.Sprintf("%s/%d", f.config.Name, os.Getpid())
	e.Record = &record
	return e
}

// poisoned reports whether the message's key fails at the moment.
func (f *faulty) poisoned(key string) bool {
	if f.config.Poison == "" || key != "poison" {
		return false
	}
	_, err := os.Stat(f.config.Poison)
	return err == nil
}

// Process is a running relay.
type Process struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// StartRelay starts this test's own binary as a relay; its log goes to out.
func StartRelay(c RelayConfig, out io.Writer) (*Process, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), os.Args[0]) // the test ends it by signals
	cmd.Env = append(os.Environ(), relayProcess+"="+string(text))
	return started(c.Name, cmd, out)
}

func started(name string, cmd *exec.Cmd, out io.Writer) (*Process, error) {
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ID is how the process signs what it publishes.
func (p *Process) ID() string { return fmt.Sprintf("%s/%d", p.Name, p.cmd.Process.Pid) }

// Signal sends a signal: SIGKILL, SIGSTOP, SIGCONT, SIGTERM.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits until the process has ended and returns how.
func (p *Process) Wait(d time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(d):
		return fmt.Errorf("relay %s did not end within %v", p.Name, d)
	}
}

// Memory is the process's resident memory in bytes.
func (p *Process) Memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}
