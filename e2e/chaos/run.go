package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// Config is what a run is asked for. The zero value of each field but Store and Broker is a default.
type Config struct {
	Seed     uint64
	Duration time.Duration // of the faults; default 20 s, at least 5 s
	Store    string        // Postgres, SQLite
	Broker   string        // JetStream, JetStreamCompare, JSONLines, RabbitMQ, Kafka, KafkaTransactions, Redis, Webhook, ServiceBus
	Rate     int           // messages a second that writers try; default 400
	Lease    time.Duration // default 2 s
	Dir      string        // where the report goes; it is made
	Program  string        // onward; default: built from this work tree
	Progress io.Writer     // told what happens; default: nobody
}

// Stores and Brokers are what there is.
var (
	Stores  = []string{Postgres, SQLite}
	Brokers = []string{JetStream, JetStreamCompare, JSONLines, RabbitMQ, Kafka, KafkaTransactions, Redis, Webhook, ServiceBus}
)

func (c *Config) complete() error {
	if c.Duration == 0 {
		c.Duration = 20 * time.Second
	}
	if c.Rate == 0 {
		c.Rate = 400
	}
	if c.Lease == 0 {
		c.Lease = 2 * time.Second
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	switch {
	case !contains(Stores, c.Store):
		return fmt.Errorf("there is no store %q: choose one of %s", c.Store, strings.Join(Stores, ", "))
	case !contains(Brokers, c.Broker):
		return fmt.Errorf("there is no broker %q: choose one of %s", c.Broker, strings.Join(Brokers, ", "))
	case c.Duration < 5*time.Second:
		return fmt.Errorf("a run of %v has no time for faults: take 5s or more", c.Duration)
	case c.Rate < 20 || c.Rate > 20_000:
		return fmt.Errorf("%d messages a second: take 20 to 20000", c.Rate)
	case c.Lease < 500*time.Millisecond || c.Lease > time.Minute:
		return fmt.Errorf("a lease of %v: take 500ms to 1m", c.Lease)
	case c.Dir == "":
		return errors.New("a run needs a folder for its report")
	}
	return nil
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// What every run has.
const (
	mostRelays  = 8
	firstRelays = 3
	partitions  = 16
	clerks      = 3
)

// run is a run on its way.
type run struct {
	Config
	settings
	work     string // folder of the servers' files, which goes
	disks    map[string]*disk
	database *database
	broker   *broker
	relays   []*relayProcess
	writers  []*writerOf
	wanted   int // relays that are to run
	started  time.Time

	mu     sync.Mutex
	faults []Fault
	acts   []Act
	meta   Meta
}

// Run runs the faults of a seed, waits until everything has arrived, writes the report's folder, and returns what the checker says.
// An error means that nothing can be said.
func Run(ctx context.Context, c Config) (Report, error) {
	if err := c.complete(); err != nil {
		return Report{}, err
	}
	if err := os.MkdirAll(filepath.Join(c.Dir, "logs"), 0o755); err != nil {
		return Report{}, err
	}
	r := &run{Config: c, disks: map[string]*disk{}}
	defer r.close()
	if err := r.open(ctx); err != nil {
		return Report{}, err
	}
	r.inject(ctx)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	h, err := r.drain(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := h.Save(c.Dir); err != nil {
		return Report{}, err
	}
	return Recheck(c.Dir, h)
}

// Recheck checks a history and writes the report beside it; h may be nil: it is read from the folder.
func Recheck(dir string, h *History) (Report, error) {
	if h == nil {
		var err error
		if h, err = Load(dir); err != nil {
			return Report{}, err
		}
	}
	report := Check(h)
	return report, saveJSON(filepath.Join(dir, reportFile), report)
}

func (r *run) say(format string, args ...any) {
	at := "setup"
	if !r.started.IsZero() {
		at = fmt.Sprintf("%5.1fs", time.Since(r.started).Seconds())
	}
	_, _ = fmt.Fprintf(r.Progress, "chaos %s  %s\n", at, fmt.Sprintf(format, args...))
}

// open makes servers, relays and writers, and waits until messages flow.
func (r *run) open(ctx context.Context) (err error) {
	if r.work, err = os.MkdirTemp("", "onward-chaos-"); err != nil {
		return err
	}
	if r.Program == "" {
		r.Program = filepath.Join(r.work, "onward")
		r.say("building onward")
		if err := build(ctx, r.Program); err != nil {
			return err
		}
	}
	if err := os.Chmod(r.work, 0o755); err != nil {
		return err
	}
	room := int64(r.Rate)*int64(r.Duration/time.Second)*2<<10 + 192<<20
	for _, name := range []string{toDatabase, toBroker} {
		if r.disks[name], err = newDisk(filepath.Join(r.work, name), room); err != nil {
			return err
		}
	}
	r.settings = settings{
		lease: r.Lease, publishTimeout: 3 * time.Second, retention: 10 * time.Second, window: 200, page: 256, maxPayload: 64 << 10,
		once: map[string]string{JetStreamCompare: "compare", KafkaTransactions: "transactions"}[r.Broker],
	}
	switch r.Broker {
	case JetStream, JetStreamCompare:
		r.stream = streamName
	case RabbitMQ:
		r.exchange = exchangeName
	case Kafka:
		r.topicTemplate = kafkaTemplate
	case KafkaTransactions:
		r.topicTemplate, r.block = kafkaTemplate, "kafka: {transactional_id: chaos, create_topics: true, transaction_timeout: 3s}"
	case Redis:
		r.topicTemplate, r.block = redisTemplate, "redis: {fence: chaos}"
	case Webhook:
		r.block = "webhook: {allow_networks: [127.0.0.0/8]}"
	}
	r.say("starting %s and %s", r.Store, r.Broker)
	if r.database, err = openDatabase(ctx, r.Store, r.disks[toDatabase].dir, partitions); err != nil {
		return fmt.Errorf("%s: %w", r.Store, err)
	}
	if r.broker, err = openBroker(ctx, r.Broker, r.disks[toBroker].dir, filepath.Join(r.Dir, "logs", "broker.log"), 48<<10); err != nil {
		return fmt.Errorf("%s: %w", r.Broker, err)
	}
	r.meta = Meta{
		Seed: r.Seed, Commit: harness.Commit(), Store: r.Store, Broker: r.Broker, NoDuplicates: r.once != "", DurationMS: r.Duration.Milliseconds(),
		LeaseMS: r.Lease.Milliseconds(), BesideMS: (r.Lease + 2*r.publishTimeout + 4*time.Second).Milliseconds(), Window: r.window, Page: r.page,
		DeadRows: map[string]int64{}, Left: map[string]int64{}, NotInjected: map[string]string{},
	}
	if refused := r.disks[toDatabase].refused; refused != "" {
		r.meta.NotInjected[string(DatabaseFull)], r.meta.NotInjected[string(BrokerFull)] = refused, refused
	}
	return r.people(ctx)
}

// people makes relays and writers, and waits until messages flow.
func (r *run) people(ctx context.Context) error {
	for i := range mostRelays {
		relay, err := newRelay(ctx, r.Dir, r.Program, fmt.Sprintf("relay-%d", i+1), &r.settings, r.database.url, r.broker, i)
		if err != nil {
			return err
		}
		r.relays = append(r.relays, relay)
	}
	for i := range 2 {
		name := fmt.Sprintf("w%d", i+1)
		w := &writerOf{process: process{name: name, log: filepath.Join(r.Dir, "logs", name+".log")}, writerConfig: writerConfig{
			Store: r.Store, URL: r.database.url, Name: name, Clerks: clerks, Keys: 12, Rate: float64(r.Rate) / 2 / clerks,
			Oversize: []int{70 << 10}, Seed: r.Seed<<8 + uint64(i), Patience: 8 * time.Second,
		}}
		if r.Broker != JSONLines && r.Broker != Redis { // whose own limit is 1 MiB at the least
			w.Oversize = append(w.Oversize, 56<<10) // the relay takes it, the broker does not
		}
		if r.Store == Postgres {
			var err error
			if w.link, err = NewLink(ctx, w.URL); err != nil {
				return err
			}
			w.URL = w.link.URL
		}
		r.writers = append(r.writers, w)
	}
	if err := r.scale(firstRelays); err != nil {
		return err
	}
	for _, w := range r.writers {
		if err := w.begin(); err != nil {
			return err
		}
	}
	patient, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, distinct := r.broker.collected.counts(); distinct > r.Rate/8 {
			return nil
		}
		if !pause(patient, 20*time.Millisecond) {
			return fmt.Errorf("messages do not flow, before any fault: see %s", filepath.Join(r.Dir, "logs"))
		}
	}
}

// build builds onward from the work tree that we were started in.
func build(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", file, "github.com/onwardhq/onward/cmd/onward")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build onward: %w\n%s", err, out)
	}
	return nil
}

// inject does the plan, and watches meanwhile. Afterwards everything is sound again.
func (r *run) inject(ctx context.Context) {
	r.started = time.Now()
	r.meta.Started = r.started.UTC()
	plan := Plan(r.Seed, r.Duration, Scene{Store: r.Store, Broker: r.Broker, Lease: r.Lease, DiskFull: r.disks[toDatabase].mounted})
	r.say("seed %d: %d faults in %v, on %s with %d CPUs; report in %s", r.Seed, len(plan), r.Duration, runtime.GOOS, runtime.NumCPU(), r.Dir)
	timed, stop := context.WithTimeout(ctx, r.Duration)
	defer stop()
	var watching, injecting sync.WaitGroup
	watching.Go(func() { r.watch(timed) })
	for _, lane := range lanes {
		injecting.Go(func() {
			for i := range plan {
				if contains(names(lane), string(plan[i].Kind)) {
					r.step(ctx, timed, plan[i])
				}
			}
		})
	}
	injecting.Wait()
	<-timed.Done()
	watching.Wait()
}

func names(kinds []Kind) (all []string) {
	for _, k := range kinds {
		all = append(all, string(k))
	}
	return all
}

// watch measures, says how it goes, and notes relays that end by themselves.
func (r *run) watch(ctx context.Context) {
	for round := 1; pause(ctx, 250*time.Millisecond); round++ {
		r.sample()
		if round%8 == 0 && r.Store == Postgres {
			r.sampleRows(ctx)
		}
		if every := 20; round%every == 0 {
			_, distinct := r.broker.collected.counts()
			r.mu.Lock()
			faults := len(r.faults)
			r.mu.Unlock()
			r.say("%d messages have arrived, %d faults were injected", distinct, faults)
		}
	}
}

func (r *run) sample() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.relays {
		r.meta.MaxRSS = max(r.meta.MaxRSS, p.peak())
	}
}

func (r *run) sampleRows(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := r.database.deadRows(ctx)
	if err != nil {
		return // it is down
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for table, n := range rows {
		r.meta.DeadRows[table] = max(r.meta.DeadRows[table], n)
	}
}

func (r *run) close() {
	for _, p := range r.relays {
		p.close()
	}
	for _, w := range r.writers {
		w.close()
	}
	if r.broker != nil {
		r.broker.close()
	}
	if r.database != nil {
		r.database.close()
	}
	for _, d := range r.disks {
		d.close()
	}
	if r.work != "" {
		_ = os.RemoveAll(r.work)
	}
}
