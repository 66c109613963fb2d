package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/discard"
	"github.com/onwardhq/onward/broker/jsonl"
	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/broker/nats"
	"github.com/onwardhq/onward/broker/rabbitmq"
	"github.com/onwardhq/onward/broker/redis"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
	"github.com/onwardhq/onward/relay/core"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres"
	"github.com/onwardhq/onward/store/sqlite"
)

func newRelay(a *app) *cobra.Command {
	var f relayFlags
	c := &cobra.Command{
		Use:   "relay",
		Short: "Publish what services write, until stopped",
		Long: `Runs a relay: it reads what services have written, publishes it in order per key, and settles what became
of it. Any number of relays may run on one outbox, on any hosts; they share its partitions, and take over
from one that dies.

It refuses to start with a wrong configuration or with tables that are missing, older or newer. A
database, broker or stream that is not there yet is waited for.

SIGTERM or Ctrl-C: it stops reading, finishes what is in flight, settles, gives its leases back, and ends
with 0. The second signal ends it at once, with 6; what was in flight may then come twice.

With --once it makes one pass instead, and ends: what was committed before it began is published, parked or dead
by then, and what was due for another try was tried once. Partitions of another live relay are that relay's. It
ends with 5 where the broker takes nothing or the database does not answer, and nothing is lost by that: the next
pass does it. As a cron job: onward relay --once --no-leasing. A second one that starts too early ends with 4.`,
		Example: `  onward relay --config onward.yaml
  ONWARD_DATABASE__URL=postgres://app@db/shop ONWARD_SINKS__0__NAME=orders \
    ONWARD_SINKS__0__URL=nats://broker:4222 ONWARD_SINKS__0__NATS__STREAM=ORDERS onward relay
  onward relay --json | jq '{published, retried, breaker}'
  onward relay --once --no-leasing --silent`,
		Args: takes(0, 0, ""),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			if f.endsWithInput {
				var stop func()
				ctx, stop = a.untilInputEnds(ctx)
				defer stop()
			}
			return a.runRelay(ctx, &f)
		},
	}
	f.add(c)
	return c
}

// untilInputEnds is the context of a relay that another process has started, and that is to stop with it, whatever ended that.
// Ctrl-C of a terminal goes to both; the other one decides then.
func (a *app) untilInputEnds(ctx context.Context) (context.Context, func()) {
	signal.Ignore(os.Interrupt)
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the input, or with the process
		_, _ = io.Copy(io.Discard, a.env.In)
		cancel()
	}()
	return ctx, cancel
}

func (a *app) runRelay(ctx context.Context, f *relayFlags) (failed error) {
	c, err := a.load(config.NeedRelay)
	if err != nil {
		return err
	}
	if err := f.apply(c); err != nil {
		return err
	}
	log := f.logger(a, c)
	signal.Ignore(syscall.SIGPIPE) // a reader of the log or of --json that goes away is no reason to stop publishing
	rc := relayConfig(c)
	rc.NoLeasing, rc.RoundEvery = f.noLeasing, f.every()
	shut, err := openPublishers(c, f.json, rc.Sinks)
	defer func() { failed = errors.Join(failed, shut()) }()
	if err != nil {
		return err
	}
	b, s, err := waitForStore(ctx, log, c.Database, f.patience(c))
	if b != nil {
		defer b.close()
	}
	if err != nil {
		if ctx.Err() != nil {
			log.Info("relay ends: it was stopped while it waited for the database")
			return nil
		}
		return err
	}
	defer func() { failed = errors.Join(failed, s.Close()) }()
	rc.Store, rc.Logger = s, log
	if f.json {
		admin, err := b.admin()
		if err != nil {
			return err
		}
		rounds, end := a.writeRounds(admin)
		defer end()
		rc.Observer = rounds
	}
	rc.Observer = observe(log, f.figures(a.env.ErrIsTerminal), rc.Observer)
	r, err := relay.New(rc)
	if err != nil {
		return err
	}
	for _, s := range c.Sinks {
		if s.Enabled {
			log.Info("relay starts", "relay", r.Name(), "sink", s.Name, "to", config.MaskURL(s.URL), "version", rc.Version)
		}
	}
	run := r.Run
	if f.once {
		run = r.RunOnce
	}
	if err := run(ctx); err != nil {
		return migrateHint(err)
	}
	log.Info("relay ends", "relay", r.Name())
	return nil
}

// openPublishers gives the sinks that are served their publishers; shut closes those that were opened.
func openPublishers(c *config.Config, jsonLines bool, sinks []relay.Sink) (shut func() error, err error) {
	shut = func() (err error) {
		for i := range sinks {
			if p := sinks[i].Publisher; p != nil {
				err = errors.Join(err, closePublisher(p, c.Relay.ShutdownGrace))
			}
		}
		return err
	}
	for i, s := range c.Sinks {
		if !s.Enabled {
			continue
		}
		if jsonLines && s.URL == "jsonl:" {
			return shut, errBothOnOut
		}
		if sinks[i].Publisher, err = openPublisher(s); err != nil {
			return shut, fmt.Errorf("sink %s: %w", s.Name, err)
		}
	}
	return shut, nil
}

var errBothOnOut = &outbox.Error{
	Code: outbox.ErrConfigInvalid.Code, Op: "relay --json", Detail: "a sink writes its messages to standard output as well",
	Hint: "leave out --json, or name a file: jsonl:/path/file.jsonl",
}

// waitForStore opens the store once the database is there, after migrating it where the configuration says so.
func waitForStore(ctx context.Context, log *slog.Logger, d config.Database, patience time.Duration) (b backend, s store.Store, err error) {
	var waited, there time.Time // since when the database was waited for, and was there
	err = waitForDatabase(ctx, log, patience, func(ctx context.Context) (err error) {
		if b == nil {
			if b, err = openBackend(context.WithoutCancel(ctx), d, d.AutoMigrate); err != nil {
				waited = time.Now()
				return err
			}
			there = time.Now()
		}
		if d.AutoMigrate {
			if err := migrateFirst(ctx, log, b); err != nil {
				return err
			}
		}
		s, err = b.open(ctx, log)
		if errors.Is(err, store.ErrSchemaMissing) && !waited.IsZero() && time.Since(there) < beingMade {
			return &outbox.Error{Code: sqlite.ErrUnavailable.Code, Op: "open outbox", Detail: "the file is there, and its tables are not yet", Err: sqlite.ErrUnavailable}
		}
		return err
	})
	return b, s, migrateHint(err)
}

// beingMade is how long the tables of a file that was waited for may be on their way: whoever migrates makes the file first.
const beingMade = 10 * time.Second

func migrateFirst(ctx context.Context, log *slog.Logger, b backend) error {
	m, err := b.migrator(migration{Report: func(step postgres.Migration) { log.Info("migrate", "step", step.String(), "locks", step.Locks) }})
	if err != nil {
		return err
	}
	return m.Up(ctx)
}

// openPublisher makes the publisher of a sink; it connects in the background.
func openPublisher(s config.Sink) (broker.Publisher, error) {
	t, setting, err := s.TLS.Config()
	if err != nil {
		return nil, &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "tls." + setting, Err: err}
	}
	switch s.Scheme() {
	case "jsonl":
		c, err := jsonl.ParseURL(s.URL)
		if err != nil {
			return nil, err
		}
		c.Sync, c.RotateBytes = s.JSONL.Sync, int64(s.JSONL.RotateBytes)
		c.Wire = s.Wire()
		return jsonl.NewPublisher(c)
	case "discard":
		return discard.NewPublisher(), nil
	case "https", "http":
		return openWebhook(s, t)
	case "kafka":
		o := s.Kafka.Options(t)
		o.Name = "onward-" + s.Name
		return kafka.Dial(s.URL, o, kafkaConfig(s))
	case "redis", "rediss":
		return redis.Dial(s.URL, redis.Options{Name: "onward-" + s.Name, TLS: t}, redisConfig(s))
	case "servicebus":
		return openServiceBus(s)
	case "amqp", "amqps":
		return rabbitmq.Dial(s.URL, rabbitmq.Options{Name: "onward " + s.Name, TLS: t}, rabbitConfig(s))
	}
	return nats.Dial(s.URL, nats.Options{Name: "onward " + s.Name, TLS: t}, natsConfig(s))
}

func natsConfig(s config.Sink) nats.Config {
	return nats.Config{Stream: s.NATS.Stream, MonitorURL: s.NATS.MonitorURL, AckTimeout: max(s.PublishTimeout, 100*time.Millisecond), Compare: s.NoDuplicates == "compare", Wire: s.Wire()}
}

func kafkaConfig(s config.Sink) kafka.Config {
	k := s.Kafka
	c := kafka.Config{Compression: k.Compression, Tombstone: k.Tombstone, CreateTopics: k.CreateTopics, AckTimeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire()}
	if s.NoDuplicates == "transactions" {
		c.Transactions = k.Transactions()
	}
	return c
}

func redisConfig(s config.Sink) redis.Config {
	r := s.Redis
	return redis.Config{
		MaxLen: int64(r.MaxLen), MaxAge: r.MaxAge, ExactTrim: r.ExactTrim, Fence: r.Fence, FenceFor: r.FenceFor, WaitAOF: r.WaitAOF,
		AckTimeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire(),
	}
}

func rabbitConfig(s config.Sink) rabbitmq.Config {
	return rabbitmq.Config{Exchange: s.RabbitMQ.Exchange, ManagementURL: s.RabbitMQ.ManagementURL, Channels: s.RabbitMQ.Channels, AckTimeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire()}
}

func closePublisher(p broker.Publisher, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return p.Close(ctx)
}

// relayConfig turns settings into the relay's own configuration.
func relayConfig(c *config.Config) relay.Config {
	rc := relay.Config{
		Name: c.Relay.Name, Lease: c.Relay.Lease, Heartbeat: c.Relay.Heartbeat, PollMin: c.Relay.PollMin, PollMax: c.Relay.PollMax,
		Wakeup: c.Relay.Wakeup, OnUnsafe: c.Relay.OnUnsafe, ShutdownGrace: c.Relay.ShutdownGrace, Page: c.Relay.Page, PageBytes: int(c.Relay.PageBytes), Version: version().Version,
	}
	rc.Retention.Published = c.Retention.Published
	if c.Retention.Published == 0 { // 0 is the default in Go
		rc.Retention.Published = relay.AtOnce
	}
	rc.Retention.Dead, _ = c.Retention.Expiry() // checked with the configuration
	for _, s := range c.Sinks {
		sink := relay.Sink{
			Name: s.Name, Selection: s.Selection(), Disabled: !s.Enabled, OnDead: s.OnDead, DeadTopic: s.DeadTopic, RecordPositions: s.RecordPositions, PublishTimeout: s.PublishTimeout,
			Retry:   core.Retry{Fixed: s.Retry.Kind == "fixed", First: s.Retry.First, Max: s.Retry.Max, Attempts: s.Retry.Attempts},
			Breaker: core.Breaker{Failures: s.Breaker.Failures, First: s.Breaker.First, Max: s.Breaker.Max},
		}
		sink.Start, _ = s.Begin()  // checked with the configuration
		if s.Retry.Attempts == 0 { // for ever: 0 is the default in Go, where a zero value must work
			sink.Retry.Attempts = -1
		}
		sink.Window.Messages, sink.Window.Bytes = s.Window.Messages, int(s.Window.Bytes)
		sink.Settle.Every, sink.Settle.Count = s.Settle.Every, s.Settle.Count
		rc.Sinks = append(rc.Sinks, sink)
	}
	for _, t := range c.Topics {
		rc.Topics = append(rc.Topics, relay.Topic{
			Match: outbox.Pattern(t.Match), OnDead: t.OnDead, RequireKey: t.RequireKey, MaxPayload: int(t.MaxPayload),
		})
	}
	return rc
}
