package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/leaktest"
	"github.com/onwardhq/onward/store/postgres"
)

func TestMain(m *testing.M) {
	Main() // where this process is a relay
	os.Exit(leaktest.Main(m))
}

// scene is one outbox, one stream, one ledger, and relays as processes.
type scene struct {
	t         testing.TB
	pool      *pgxpool.Pool
	url, nats string
	schema    string
	stream    string
	parts     int
	work      *Workload
	collector *Collector
	log       Output // of all relays; shown when a test fails
	relays    map[string]*Process
	configs   map[string]RelayConfig
	faults    []Fault
	mu        sync.Mutex
}

func needed(t testing.TB, variable string) string {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		t.Skip(variable + ` is not set: start the servers with: dev/services up && eval "$(dev/services env)"`)
	}
	return v
}

// open makes a scene on the shared servers.
func open(t testing.TB, partitions int, w *Workload) *scene {
	t.Helper()
	return openOn(t, needed(t, "ONWARD_TEST_POSTGRES_URL"), needed(t, "ONWARD_TEST_NATS_URL"), partitions, w)
}

func openOn(t testing.TB, url, nats string, partitions int, w *Workload) *scene {
	t.Helper()
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := hex.EncodeToString(b[:])
	s := &scene{
		t: t, url: url, nats: nats, schema: "e2e_" + name, stream: "E2E_" + strings.ToUpper(name), parts: partitions,
		relays: map[string]*Process{}, configs: map[string]RelayConfig{},
	}
	ctx := t.Context()
	config, err := pgxpool.ParseConfig(url)
	s.must(err)
	config.MaxConns = 24
	s.pool, err = pgxpool.NewWithConfig(ctx, config)
	s.must(err)
	_, err = s.pool.Exec(ctx, fmt.Sprintf("CREATE SCHEMA %q", s.schema))
	s.must(err)
	t.Cleanup(s.close)
	s.must(postgres.Migrate(ctx, s.pool, postgres.MigrateConfig{Schema: s.schema, Partitions: partitions}))
	topic := "e2e." + name
	s.must(CreateStream(ctx, s.nats, s.stream, []string{topic, topic + ".>"}, 100*time.Millisecond))
	s.collector, err = Collect(ctx, s.nats, s.stream)
	s.must(err)
	w.Pool, w.Schema, w.Prefix, w.Topic = s.pool, s.schema, "outbox_", topic
	s.work = w
	s.must(w.CreateLedger(ctx))
	return s
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) close() {
	for _, p := range s.relays {
		_ = p.Signal(syscall.SIGCONT)
		_ = p.Signal(syscall.SIGKILL)
		_ = p.Wait(10 * time.Second)
	}
	if s.collector != nil {
		s.collector.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = DeleteStream(ctx, s.nats, s.stream)
	_, _ = s.pool.Exec(ctx, fmt.Sprintf("DROP SCHEMA IF EXISTS %q CASCADE", s.schema))
	s.pool.Close()
	if s.t.Failed() {
		file := filepath.Join(os.TempDir(), "onward-"+s.schema+".log")
		_ = os.WriteFile(file, []byte(s.log.String()), 0o600)
		s.t.Logf("the relays' logs are in %s", file)
	}
}

// start starts a relay, or starts it again under its name.
func (s *scene) start(c RelayConfig) {
	s.t.Helper()
	c.Schema, c.Prefix, c.Stream = s.schema, "outbox_", s.stream
	if c.Database == "" {
		c.Database = s.url
	}
	if c.NATS == "" {
		c.NATS = s.nats
	}
	p, err := StartRelay(c, &s.log)
	s.must(err)
	s.relays[c.Name], s.configs[c.Name] = p, c
}

// signal sends a signal to a relay and notes it as a fault.
func (s *scene) signal(name string, sig syscall.Signal) {
	s.t.Helper()
	s.fault(sig.String(), name)
	s.must(s.relays[name].Signal(sig))
	s.fault(sig.String(), name)
}

func (s *scene) fault(kind, target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, Fault{Kind: kind, Target: target, At: time.Now()})
}

// check waits until everything committed has arrived and compares it with the ledger.
func (s *scene) check(beside, quiet time.Duration) Verdict {
	s.t.Helper()
	ledger, err := s.work.Ledger(s.t.Context())
	s.must(err)
	if err := s.collector.WaitFor(s.t.Context(), len(ledger), quiet); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	run := Run{Ledger: ledger, Arrivals: s.collector.Arrivals(), Faults: s.faults, Beside: beside}
	s.mu.Unlock()
	v := Check(run)
	s.t.Logf("%v; faults: %d", v, len(run.Faults))
	if !v.OK() {
		s.t.Errorf("promises broken: %v\n%s", v, v.Details())
		_ = run.Save(filepath.Join(os.TempDir(), "onward-"+s.schema+".json"))
	}
	s.owners(run)
	return v
}

// owners wants each epoch of a partition to be of one relay, and of one life of the database.
func (s *scene) owners(r Run) {
	s.t.Helper()
	if o := CheckOwners(r, s.parts); o.Shared > 0 || o.Owners == 0 {
		s.t.Errorf("%d of %d epochs had two owners\n%s", o.Shared, o.Owners, strings.Join(o.Examples, "\n"))
	}
}

// checkTakeOvers is check where relays are killed and nothing else is done: no copy can be of the owner that made the first.
func (s *scene) checkTakeOvers(beside, quiet time.Duration) Verdict {
	s.t.Helper()
	v := s.check(beside, quiet)
	if v.SameOwner > 0 {
		s.t.Errorf("%d duplicates are of one owner\n%s", v.SameOwner, v.Details())
	}
	return v
}

// registered waits until live relays of these names are there, so that they take signals as relays do.
func (s *scene) registered(names ...string) {
	s.t.Helper()
	for n := 0; n < len(names); pause(s.t.Context(), 10*time.Millisecond) {
		s.must(s.t.Context().Err())
		s.must(s.pool.QueryRow(s.t.Context(), fmt.Sprintf(`SELECT count(*) FROM %q.outbox_relays WHERE name = ANY($1)`, s.schema), names).Scan(&n))
	}
}
