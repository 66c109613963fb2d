// Package relay publishes the messages of an outbox: it reads them from a store, hands them to a publisher in order per
// key, and settles what became of them. Package relay/core decides; this package is the goroutines and the I/O around
// it.
//
// A Relay runs inside a service, or as the daemon `onward relay` beside it. Any number of relays may run on one outbox:
// they share its partitions out by leases.
package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// Config is one relay. Zero values are the defaults given; New reports all faults at once.
type Config struct {
	Store  store.Store // required; stays open
	Sinks  []Sink      // at least one; their names differ
	Topics []Topic     // rules for topics; the first that matches wins

	// Name is unique among live relays: a second relay with this name waits until the lease of the first has ended.
	// Default: host-pid-random.
	Name      string
	Lease     time.Duration // how long others wait before they take over; 0: 15s; at least 100ms
	Heartbeat time.Duration // how often the lease is renewed; 0: 3s, or a fifth of Lease; at most a third of it
	PollMin   time.Duration // an idle relay polls first this often; 0: 2ms
	PollMax   time.Duration // and in the end this often; 0: 100ms
	// Wakeup is WakeupAuto (default) or WakeupOff. With auto an idle relay polls once a second while its store promises to say when
	// something is committed, and writers pay for that with a NOTIFY when the relay sleeps. PostgreSQL refuses to prepare a
	// transaction for two-phase commit that has notified: where services do that, every relay of the outbox needs off.
	Wakeup string
	// ShutdownGrace is how long Run waits, after its context ended, for what is in flight; 0: 30s.
	ShutdownGrace time.Duration
	Page          int // most messages of one read; 0: 2048
	PageBytes     int // most payload bytes of one read; 0: 16 MiB
	Retention     Retention
	// OnUnsafe says what becomes of servers whose settings can lose what they have taken, as far as the store and the
	// publishers can examine them: OnUnsafeWarn (default), OnUnsafeRefuse or OnUnsafeIgnore. RunOnce looks only to refuse.
	OnUnsafe string
	// NoLeasing: the relay shares no sink. Another live relay of one of its sinks, or one that wants to be, is refused with
	// store.SinkHeld: at once, by whichever comes second.
	NoLeasing bool
	// RoundEvery is how often the Observer is told; 0: 1s; at least 1ms.
	RoundEvery time.Duration

	Version  string       // of the program, for `relays list`
	Logger   *slog.Logger // nil: silent
	Observer Observer     // nil: none
}

// Sink is a named destination with its own cursors.
type Sink struct {
	Name      string           // required; 1 to 64 of a-z, 0-9, _ and -
	Publisher broker.Publisher // required unless Disabled; stays open
	// Selection is which topics the sink takes; the zero value: all. The relay passes over everything else.
	outbox.Selection
	// Start is where the sink begins; it counts once, when the sink first appears. The zero value: the beginning.
	Start store.Start
	// Disabled: the sink is registered and not served. Its cursors stand still, and what it has not taken is kept.
	Disabled bool
	// OnDead says what a dead letter does to its key: "block" (default) holds it until somebody requeues or discards,
	// "skip" lets it go on. Topics may say otherwise.
	OnDead string
	// DeadTopic, where set, is a template (broker.ParseTemplate) of a topic to which each dead letter of the sink is published
	// as well, once, before it is written back. The copy has an id of its own, no key, and its cause in headers called
	// onward-dead-...; where it cannot be published the log says so, and nothing waits for it.
	DeadTopic       string
	RecordPositions bool // keep the broker's position of every message
	// Window bounds what is published and not yet settled: what may come twice after a crash. 0: 1000 messages, 16 MiB.
	Window struct{ Messages, Bytes int }
	// Settle bounds how long an outcome waits to be written back. 0: 20ms, 1000 outcomes.
	Settle struct {
		Every time.Duration
		Count int
	}
	PublishTimeout time.Duration // then an answer counts as lost; 0: 10s
	Retry          core.Retry
	Breaker        core.Breaker
}

// Topic is a rule for the topics that match.
type Topic struct {
	Match      outbox.Pattern
	OnDead     string // "block", "skip"; empty: the sink's
	RequireKey bool   // a message without a key becomes a dead letter with onward/key-required
	MaxPayload int    // bytes; a larger one becomes a dead letter with onward/payload-too-large; 0: no limit
}

// Observer is told what the relay does. Calls come one after the other and must not block.
type Observer interface {
	// Round is called for each sink every Config.RoundEvery, and at the end of a run.
	Round(r Round)
}

// Round is what happened on a sink since the round before.
type Round struct {
	Sink       string
	Read       int // messages taken from the log
	Published  int // duplicates included
	Duplicates int // of them the broker had already
	Retried    int // failures that used up an attempt and will be tried again
	Parked     int // times that a message was parked: for a retry, for its time, or behind another one of its key
	Dead       int // messages that became dead letters
	Settled    int // messages of the log whose outcome is in the database
	Gained     int // partitions
	Released   int // partitions that were given back
	// Deleted is how many messages retention removed from the log, whatever sinks had them; in a round of one of the relay's sinks.
	Deleted int

	Outcomes map[broker.Outcome]int // the publisher's answers; none is 0

	// At the end of the round: partitions held, live relays of the sink, messages in memory and undecided, keys with state
	// in memory, whether publishing has stopped because the broker takes nothing.
	Owned, Relays, InFlight, Keys int
	BreakerOpen                   bool
	Took                          time.Duration // the round
}

// Relay runs the sinks of one Config.
type Relay struct {
	config   Config
	log      *slog.Logger
	database trouble // before the sinks are served; each feed has its own
	once     bool    // RunOnce
	began    time.Time

	removed  atomic.Int64 // by retention, since the last round
	mu       sync.Mutex
	id       outbox.ID              // of the registration that all sinks share
	woken    map[chan struct{}]bool // by Wake
	observed sync.Mutex
}

// New checks the configuration, all of it at once, and returns a relay that does nothing until Run.
func New(c Config) (*Relay, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.fill()
	r := &Relay{config: c, log: c.Logger.With("relay", c.Name), woken: map[chan struct{}]bool{}}
	r.database = newTrouble(r.log)
	return r, nil
}

func (c *Config) fill() {
	def(&c.Lease, 15*time.Second)
	def(&c.Heartbeat, min(3*time.Second, c.Lease/5))
	def(&c.PollMin, 2*time.Millisecond)
	def(&c.PollMax, max(c.PollMin, 100*time.Millisecond))
	def(&c.Wakeup, WakeupAuto)
	def(&c.OnUnsafe, OnUnsafeWarn)
	def(&c.ShutdownGrace, 30*time.Second)
	def(&c.Page, 2048)
	def(&c.PageBytes, 16<<20)
	c.Retention.fill()
	def(&c.RoundEvery, time.Second)
	if c.Name == "" {
		c.Name = defaultName()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](v *T, d T) {
	if *v == *new(T) {
		*v = d
	}
}

func defaultName() string {
	var b [3]byte
	_, _ = rand.Read(b[:])
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), hex.EncodeToString(b[:]))
}

// Name returns the name that the relay registers with.
func (r *Relay) Name() string { return r.config.Name }

// Run publishes until ctx ends; then it finishes what is in flight, settles it, gives its leases back and returns nil.
// It waits, and says so in the log, while the database or the broker cannot be reached or another live relay has its
// name. It returns an error when the store refuses (schema missing, old or new), when a server is unsafe and
// Config.OnUnsafe refuses that (ErrUnsafe), when another relay has taken its name
// over, when a relay that does not share serves a sink (store.SinkHeld), or when what was in flight did not end within ShutdownGrace: the first such error of a sink ends all of them.
//
// Call Run once. It returns when everything that it started has ended, but for calls of the publisher that never return.
func (r *Relay) Run(ctx context.Context) error {
	info, err := r.reach(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looking, err := r.examine(ctx)
	if err != nil {
		return err
	}
	defer looking()
	r.began = time.Now()
	if !r.once {
		defer r.startRetention(ctx)()
	}
	errs := make([]error, len(r.config.Sinks))
	var feeds sync.WaitGroup
	for i := range r.config.Sinks {
		feeds.Add(1)
		go func() {
			defer feeds.Done()
			if errs[i] = r.newFeed(&r.config.Sinks[i], info).run(ctx); errs[i] != nil && !isGaveUp(errs[i]) {
				cancel() // one sink that cannot be served ends the relay; the others end gracefully
			}
		}()
	}
	feeds.Wait()
	return errors.Join(errs...)
}

// lastBeat is where a machine's clock begins that is made now: so that the sinks of a relay ask at the same times what others did
// meanwhile, and the store can answer all of them at once.
func (r *Relay) lastBeat(now time.Time) time.Time {
	return now.Add(-(now.Sub(r.began) % core.Beat))
}

// identity is the id that the relay registers with: one for all sinks, and another one after a registration has failed.
func (r *Relay) identity(failed outbox.ID) outbox.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id == failed {
		r.id = outbox.NewID()
	}
	return r.id
}

// registered is the id that the relay registers with, zero before the first time.
func (r *Relay) registered() outbox.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id
}

// reach asks the store for its info, and waits while it cannot be reached.
func (r *Relay) reach(ctx context.Context) (info store.Info, err error) {
	err = r.retry(ctx, &r.database, "info", refused, func(ctx context.Context) error {
		info, err = r.config.Store.Info(ctx)
		return err
	})
	return info, err
}

// refusals are errors that waiting does not mend.
var refusals = []error{
	store.ErrSchemaMissing, store.ErrSchemaOld, store.ErrSchemaNew, store.ErrDatabaseUnsupported,
	outbox.ErrConfigInvalid, outbox.ErrIdentifierInvalid,
}

func refused(err error) bool {
	if held := (*store.SinkHeld)(nil); errors.As(err, &held) {
		return true
	}
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}

// retry makes a call until it is answered, by nil or an error for good, or ctx ends (nil).
func (r *Relay) retry(ctx context.Context, database *trouble, call string, forGood func(error) bool, f func(context.Context) error) error {
	wait := 100 * time.Millisecond
	var over time.Time // when the name is free, as far as that was known at first
	for {
		err := f(ctx)
		if err == nil {
			database.answered(call)
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is the caller's wish; what it did to the call is no news
		}
		if forGood(err) {
			return err
		}
		var taken *store.NameTaken
		if errors.As(err, &taken) {
			database.answered(call)
			if r.nameStays(taken, &over) {
				return err
			}
			r.log.Warn("waiting: a live relay has this name; give this one another name, or stop that one",
				"host", taken.Host, "pid", taken.PID, "lease_ends_in", taken.Until.Round(time.Millisecond))
			wait = min(max(taken.Until, 50*time.Millisecond), r.config.Heartbeat)
		} else {
			database.failed(call, "waiting for the database", err, "again_in", wait)
			if away := r.databaseAway(database); away != nil {
				return away
			}
		}
		if !sleep(ctx, wait) {
			return nil
		}
		wait = min(2*wait, 5*time.Second)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
