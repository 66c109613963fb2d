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
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
)

// Config is one relay. Zero values are the defaults given; New reports all faults at once.
type Config struct {
	Store  store.Store // required; stays open
	Sinks  []Sink      // exactly one, for now
	Topics []Topic     // rules for topics; the first that matches wins

	// Name is unique among live relays: a second relay with this name waits until the lease of the first has ended.
	// Default: host-pid-random.
	Name      string
	Lease     time.Duration // how long others wait before they take over; 0: 15s; at least 100ms
	Heartbeat time.Duration // how often the lease is renewed; 0: 3s, or a fifth of Lease; at most a third of it
	PollMin   time.Duration // an idle relay polls first this often; 0: 2ms
	PollMax   time.Duration // and in the end this often; 0: 100ms
	// ShutdownGrace is how long Run waits, after its context ended, for what is in flight; 0: 30s.
	ShutdownGrace time.Duration
	Page          int // most messages of one read; 0: 2048
	PageBytes     int // most payload bytes of one read; 0: 16 MiB

	Version  string       // of the program, for `relays list`
	Logger   *slog.Logger // nil: silent
	Observer Observer     // nil: none
}

// Sink is a named destination with its own cursors.
type Sink struct {
	Name      string           // required; 1 to 64 of a-z, 0-9, _ and -
	Publisher broker.Publisher // required; stays open
	// OnDead says what a dead letter does to its key: "block" (default) holds it until somebody requeues or discards,
	// "skip" lets it go on. Topics may say otherwise.
	OnDead          string
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

// Observer is told what the relay does. Calls come from one goroutine and must not block.
type Observer interface {
	// Round is called once a second and at the end of a run.
	Round(r Round)
}

// Round is what happened on a sink since the round before.
type Round struct {
	Sink                                                                          string
	Read, Published, Duplicates, Retried, Parked, Dead, Settled, Gained, Released int
	Owned, Relays                                                                 int // at the end of the round
	InFlight, Keys                                                                int // messages in memory and undecided, keys with state in memory
	Outcomes                                                                      map[broker.Outcome]int
	BreakerOpen                                                                   bool
	Took                                                                          time.Duration
}

// Relay runs the sinks of one Config.
type Relay struct {
	config   Config
	rules    core.Rules
	log      *slog.Logger
	database trouble
}

// New checks the configuration, all of it at once, and returns a relay that does nothing until Run.
func New(c Config) (*Relay, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.fill()
	r := &Relay{config: c, log: c.Logger.With("relay", c.Name)}
	r.database = trouble{log: r.log, calls: map[string]bool{}}
	return r, nil
}

func (c *Config) fill() {
	def(&c.Lease, 15*time.Second)
	def(&c.Heartbeat, min(3*time.Second, c.Lease/5))
	def(&c.PollMin, 2*time.Millisecond)
	def(&c.PollMax, max(c.PollMin, 100*time.Millisecond))
	def(&c.ShutdownGrace, 30*time.Second)
	def(&c.Page, 2048)
	def(&c.PageBytes, 16<<20)
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
// name. It returns an error when the store refuses (schema missing, old or new), when another relay has taken its name
// over, or when what was in flight did not end within ShutdownGrace.
//
// Call Run once. It returns when everything that it started has ended, but for calls of the publisher that never return.
func (r *Relay) Run(ctx context.Context) error {
	info, err := r.reach(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	r.rules = r.coreRules(info)
	replaced := false
	for ctx.Err() == nil {
		session, err := r.join(ctx, replaced)
		if err != nil {
			return err
		}
		if session == nil {
			return nil // ctx ended while waiting
		}
		err = r.serve(ctx, session)
		if !errors.Is(err, store.ErrFenced) {
			return err
		}
		r.log.Warn("another relay has taken over: joining again")
		replaced = true
	}
	return nil
}

// reach asks the store for its info, and waits while it cannot be reached.
func (r *Relay) reach(ctx context.Context) (info store.Info, err error) {
	err = r.retry(ctx, "info", refused, func(ctx context.Context) error {
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
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}

// retry makes a call until it is answered, by nil or an error for good, or ctx ends (nil).
func (r *Relay) retry(ctx context.Context, call string, forGood func(error) bool, f func(context.Context) error) error {
	wait := 100 * time.Millisecond
	for {
		err := f(ctx)
		if err == nil {
			r.database.answered(call)
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
			r.database.answered(call)
			r.log.Warn("waiting: a live relay has this name; give this one another name, or stop that one",
				"host", taken.Host, "pid", taken.PID, "lease_ends_in", taken.Until.Round(time.Millisecond))
			wait = min(max(taken.Until, 50*time.Millisecond), r.config.Heartbeat)
		} else {
			r.database.failed(call, "waiting for the database", err, "again_in", wait)
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

// join registers the relay; nil without an error when ctx ended first. A relay that was replaced does not wait for
// whoever has its name now.
func (r *Relay) join(ctx context.Context, replaced bool) (session store.Session, err error) {
	host, _ := os.Hostname()
	forGood := func(err error) bool { return refused(err) || replaced && errors.Is(err, store.ErrNameTaken) }
	err = r.retry(ctx, "join", forGood, func(ctx context.Context) (err error) {
		session, err = r.config.Store.Join(ctx, store.Relay{
			ID: outbox.NewID(), Name: r.config.Name, Host: host, PID: os.Getpid(), Version: r.config.Version,
			Lease: r.config.Lease, Heartbeat: r.config.Heartbeat, Page: r.config.Page, PageBytes: r.config.PageBytes,
		}, store.Sink{Name: r.config.Sinks[0].Name})
		return err
	})
	if err != nil && replaced {
		return nil, fmt.Errorf("another relay took over and has the name now: %w", err)
	}
	return session, err
}

func (r *Relay) coreRules(info store.Info) core.Rules {
	s := r.config.Sinks[0]
	return core.Rules{
		Messages: s.Window.Messages, Bytes: s.Window.Bytes, Page: r.config.Page, PageBytes: r.config.PageBytes,
		SettleEvery: s.Settle.Every, SettleCount: s.Settle.Count, PublishTimeout: s.PublishTimeout,
		PollMin: r.config.PollMin, PollMax: r.config.PollMax, LeaseMargin: r.config.Lease / 10,
		Retry: s.Retry, Breaker: s.Breaker, Pipeline: s.Publisher.Capabilities().Pipeline,
		Lineage: info.Lineage, Positions: s.RecordPositions, Topic: topicRules(s.OnDead, r.config.Topics), Rand: newRand(),
	}
}

// topicRules remembers what holds for each topic; topics are few.
func topicRules(onDead string, rules []Topic) func(string) core.Topic {
	known := map[string]core.Topic{}
	return func(topic string) core.Topic {
		t, ok := known[topic]
		if ok {
			return t
		}
		t.Skips = onDead == "skip"
		for _, rule := range rules {
			if rule.Match.Match(topic) {
				t = core.Topic{Skips: rule.OnDead == "skip" || rule.OnDead == "" && t.Skips, RequireKey: rule.RequireKey, MaxPayload: rule.MaxPayload}
				break
			}
		}
		if len(known) < 10_000 {
			known[strings.Clone(topic)] = t
		}
		return t
	}
}
