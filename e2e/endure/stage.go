package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"

	"github.com/onwardhq/onward/e2e/harness"
	"github.com/onwardhq/onward/store/postgres"
)

// partitions of the outbox that the runs use.
const partitions = 32

// config is one run.
type config struct {
	What           string
	Count          int
	Seed           uint64
	Relays         int
	Lease, Every   time.Duration
	Database, NATS string
	Words          io.Writer // progress
}

// usual fills in what the large runs use.
func (c *config) usual() {
	c.Count, c.Relays, c.Lease, c.Every = 10_000, 6, time.Second, 100*time.Millisecond
	if c.What == "restarts" {
		c.Count, c.Relays, c.Lease, c.Every = 1000, 3, 15*time.Second, 40*time.Millisecond
	}
}

// member is a running relay.
type member struct {
	process *harness.Process
	flight  *harness.Flight
	told    bool // to stop
}

// stage is one outbox under load, and the relays that serve it.
type stage struct {
	config
	rng       *rand.Rand
	dir       string
	log       *os.File
	pool      *pgxpool.Pool
	schema    string
	stream    string
	work      *harness.Workload
	collector *harness.Collector
	members   []*member
	started   int
	report    report
	said      time.Time

	mu     sync.Mutex
	faults []harness.Fault
	ids    map[string]string // of processes, by their names
}

// run makes a stage, does what the configuration says, waits until everything has arrived, and judges.
func (c *config) run(ctx context.Context) (*report, error) {
	s := &stage{config: *c, rng: rand.New(rand.NewPCG(c.Seed, 0)), said: time.Now(), ids: map[string]string{}}
	began := time.Now()
	s.report = report{What: c.What, Relays: c.Relays, Lease: c.Lease.String(), Seed: c.Seed, Commit: harness.Commit(), Began: began.UTC().Format(time.RFC3339)}
	defer s.close()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	load, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan error, 1)
	go func() { written <- s.work.Run(load) }()
	err := s.start(s.Relays)
	if err == nil {
		err = s.collector.WaitFor(ctx, 50, time.Minute)
	}
	if err == nil {
		err = map[string]func(context.Context) error{"kills": s.kills, "restarts": s.restarts}[s.What](ctx)
	}
	stop()
	if failed := <-written; err == nil {
		err = failed
	}
	if err == nil {
		err = s.judge(ctx)
	}
	s.report.Took = round(time.Since(began))
	return &s.report, err
}

// open makes the outbox, the stream and the ledger.
func (s *stage) open(ctx context.Context) (err error) {
	name := fmt.Sprintf("%x", rand.Uint64()) //nolint:gosec // a name
	s.schema, s.stream = "endure_"+name, "ENDURE_"+strings.ToUpper(name)
	if s.dir, err = os.MkdirTemp("", "onward-endure-"); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "relays.log")); err != nil {
		return err
	}
	if s.pool, err = pgxpool.New(ctx, s.Database); err != nil {
		return err
	}
	var version string
	if err := s.pool.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&version); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, fmt.Sprintf("CREATE SCHEMA %q", s.schema)); err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, s.pool, postgres.MigrateConfig{Schema: s.schema, Partitions: partitions}); err != nil {
		return err
	}
	nc, err := natsgo.Connect(s.NATS)
	if err != nil {
		return err
	}
	s.report.On = machine("PostgreSQL "+version, "nats-server "+nc.ConnectedServerVersion())
	nc.Close()
	topic := "endure." + name
	if err := harness.CreateStream(ctx, s.NATS, s.stream, []string{topic}, 100*time.Millisecond); err != nil {
		return err
	}
	if s.collector, err = harness.Collect(ctx, s.NATS, s.stream); err != nil {
		return err
	}
	s.work = &harness.Workload{
		Pool: s.pool, Schema: s.schema, Prefix: "outbox_", Topic: topic, Keys: 400, Writers: 4, Payload: 64,
		Rollbacks: 0.02, Pause: 30 * time.Millisecond, Hold: 10 * time.Millisecond, Seed: s.Seed,
	}
	return s.work.CreateLedger(ctx)
}

// close ends the relays, and removes what the run made; the log stays where a promise was broken.
func (s *stage) close() {
	for _, m := range slices.Clone(s.members) {
		_ = m.process.Signal(syscall.SIGKILL)
		_ = m.process.Wait(10 * time.Second)
		s.drop(m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.collector != nil {
		s.collector.Close()
		_ = harness.DeleteStream(ctx, s.NATS, s.stream)
	}
	if s.pool != nil {
		_, _ = s.pool.Exec(ctx, fmt.Sprintf("DROP SCHEMA IF EXISTS %q CASCADE", s.schema))
		s.pool.Close()
	}
	_ = s.log.Close()
	if s.report.Saved == "" {
		_ = os.RemoveAll(s.dir)
	}
}

// start starts n relays. Each has a name of its own: the name of one that was killed is taken until its lease has ended.
func (s *stage) start(n int) error {
	for range n {
		s.started++
		name := fmt.Sprintf("relay-%d", s.started)
		file := filepath.Join(s.dir, name)
		flight, err := harness.OpenFlight(file)
		if err != nil {
			return err
		}
		process, err := harness.StartRelay(harness.RelayConfig{
			Name: name, Database: s.Database, Schema: s.schema, Prefix: "outbox_", NATS: s.NATS, Stream: s.stream, Lease: s.Lease, Window: 200,
			SettleEvery: time.Duration(1+s.rng.IntN(100)) * time.Millisecond, Flight: file, Seed: s.rng.Uint64(),
		}, s)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.ids[name] = process.ID()
		s.mu.Unlock()
		s.members = append(s.members, &member{process: process, flight: flight})
	}
	return nil
}

// drop forgets a relay that has ended.
func (s *stage) drop(m *member) {
	s.members = slices.DeleteFunc(s.members, func(o *member) bool { return o == m })
	_ = m.flight.Close()
	_ = os.Remove(filepath.Join(s.dir, m.process.Name))
}

// some are n relays, at random.
func (s *stage) some(n int) []*member {
	all := slices.Clone(s.members)
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

func (s *stage) fault(kind string, m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, harness.Fault{Kind: kind, Target: m.process.ID(), At: time.Now()})
}

// Write takes what relays log. That one was replaced, or had to read its session again, explains copies of what it had published.
func (s *stage) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range bytes.Lines(text) {
		kind := ""
		switch {
		case bytes.Contains(line, []byte("another relay has taken over")):
			kind = "replaced"
			s.report.Replaced++
		case bytes.Contains(line, []byte("loading the session again")):
			kind = "reloaded"
		}
		if name := nameIn.FindSubmatch(line); kind != "" && name != nil {
			// Its successor may have published before it learnt of that.
			s.faults = append(s.faults, harness.Fault{Kind: kind, Target: s.ids[string(name[1])], At: time.Now().Add(-s.Lease - 5*time.Second)})
		}
	}
	return s.log.Write(text)
}

var nameIn = regexp.MustCompile(` relay=(\S+)`)

// say reports how far the run is, now and then.
func (s *stage) say(done int) {
	if time.Since(s.said) < 10*time.Second {
		return
	}
	s.said = time.Now()
	s.mu.Lock()
	replaced := s.report.Replaced
	s.mu.Unlock()
	_, _ = fmt.Fprintf(s.Words, "%s %d of %d: %d messages arrived; %d relays had messages in flight, %d in all; %d replaced without a cause\n",
		s.What, done, s.Count, s.collector.Distinct(), s.report.Flight.Relays, s.report.Flight.Messages, replaced)
}

// judge waits until everything committed has arrived, and compares.
func (s *stage) judge(ctx context.Context) error {
	ledger, err := s.work.Ledger(ctx)
	if err != nil {
		return err
	}
	if err := s.collector.WaitFor(ctx, len(ledger), 30*time.Second); err != nil {
		_, _ = fmt.Fprintln(s.Words, err)
	}
	flight := s.report.Flight // everything is settled by now, or should be
	s.stopAll(s.some(len(s.members)))
	s.report.Flight = flight
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, how := range s.report.Died[:min(5, len(s.report.Died))] {
		_, _ = fmt.Fprintln(s.Words, "died:", how)
	}
	run := harness.Run{Ledger: ledger, Arrivals: s.collector.Arrivals(), Faults: s.faults, Beside: s.Lease + 5*time.Second}
	s.report.Verdict, s.report.Owners = harness.Check(run), harness.CheckOwners(run, partitions)
	s.report.judge()
	if s.report.Holds {
		return nil
	}
	s.report.Saved = filepath.Join(s.dir, "run.json")
	return run.Save(s.report.Saved)
}

// ended notes how a relay ended that had to end by itself, without an error.
func (s *stage) ended(m *member, err error) {
	if err != nil {
		s.died(m, err)
		_ = m.process.Signal(syscall.SIGKILL)
		_ = m.process.Wait(time.Minute)
	}
	s.drop(m)
}

func (s *stage) died(m *member, err error) {
	s.report.Died = append(s.report.Died, fmt.Sprintf("%s: %v", m.process.ID(), err))
}
