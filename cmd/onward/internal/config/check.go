package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker/discard"
	"github.com/onwardhq/onward/broker/jsonl"
	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/broker/rabbitmq"
	"github.com/onwardhq/onward/broker/redis"
	"github.com/onwardhq/onward/broker/webhook"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/relay"
)

// The URL schemes that this program knows.
var (
	DatabaseSchemes = []string{"postgres", "postgresql", "sqlite"}
	SinkSchemes     = []string{"nats", "kafka", "amqp", "amqps", "redis", "rediss", "servicebus", "https", "http", "jsonl", "discard"}
)

var (
	identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)
	sinkName   = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)
)

// checker collects what is wrong with values, except where a setting is known to be at fault already.
type checker struct {
	c      *Config
	need   Need
	known  map[string]bool // place and path
	faults Faults
}

// check looks at every value.
func (c *Config) check(need Need, found Faults) Faults {
	k := &checker{c: c, need: need, known: make(map[string]bool)}
	for _, f := range found {
		k.known[f.Place+" "+f.Path] = true
	}
	k.database()
	k.relay()
	k.that(len(c.Sinks) > 0 || need < NeedRelay, "sinks", "a relay needs one: add it to the file, or set %[1]s__NAME=orders, %[1]s__URL=nats://host:4222 and %[1]s__NATS__STREAM=ORDERS", Prefix+"SINKS__0")
	for i := range c.Sinks {
		k.sink("sinks["+strconv.Itoa(i)+"]", &c.Sinks[i])
	}
	k.sinks()
	for i := range c.Topics {
		k.topic("topics["+strconv.Itoa(i)+"]", &c.Topics[i])
	}
	dead, err := c.Retention.Expiry()
	k.that(err == nil, "retention.dead", "%q is neither never nor a duration: write for example 720h or 30d", c.Retention.Dead)
	k.that(err != nil || c.Retention.Dead == "never" || dead >= time.Minute, "retention.dead", "is %v, the least is 1m; never keeps them", dead)
	k.oneOf("telemetry.log.level", c.Telemetry.Log.Level, "debug", "info", "warn", "error")
	k.oneOf("telemetry.log.format", c.Telemetry.Log.Format, "auto", "text", "json")
	return k.faults
}

// that adds a fault unless ok.
func (k *checker) that(ok bool, path, format string, args ...any) {
	at := k.c.place(path)
	if !ok && !k.known[at.name+" "+path] {
		k.known[at.name+" "+path] = true
		k.faults = append(k.faults, at.fault(path, fmt.Sprintf(format, args...)))
	}
}

// place is where a setting was made, or else where the block begins that it is missing in.
func (c *Config) place(path string) place {
	for {
		if p, ok := c.places[path]; ok {
			return p
		}
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return place{}
		}
		path = path[:i]
	}
}

func (k *checker) oneOf(path, value string, words ...string) {
	k.that(slices.Contains(words, value), path, "%q is not one of %s", value, strings.Join(words, ", "))
}

func atLeast[T int | ByteSize | time.Duration](k *checker, path string, value, least T) {
	k.that(value >= least, path, "is %v, the least is %v", value, least)
}

func (k *checker) database() {
	d := &k.c.Database
	k.that(d.URL != "" || k.need < NeedDatabase, "database.url", "is missing: add it to the file, or set %sDATABASE__URL=postgres://user:password@host:5432/database", Prefix)
	if d.URL != "" {
		k.url("database.url", d.URL, DatabaseSchemes)
	}
	if d.ListenURL != "" {
		k.url("database.listen_url", d.ListenURL, []string{"postgres", "postgresql"})
		k.that(!strings.HasPrefix(d.URL, "sqlite:"), "database.listen_url", "is for PostgreSQL: database.url names a file")
	}
	const rule = "%q is not an identifier: use lower-case letters, digits and underscores, at most 31"
	k.that(identifier.MatchString(d.Schema), "database.schema", rule, d.Schema)
	k.that(identifier.MatchString(d.TablePrefix), "database.table_prefix", rule, d.TablePrefix)
	atLeast(k, "database.max_connections", d.MaxConnections, 2)
	k.oneOf("database.publish_when", d.PublishWhen, "committed", "flushed", "replicated")
	k.that(d.PublishWhen == "committed" || !strings.HasPrefix(d.URL, "sqlite:"), "database.publish_when", "%q is for PostgreSQL: an SQLite file is flushed at each commit", d.PublishWhen)
}

func (k *checker) relay() {
	r := &k.c.Relay
	k.that(r.Lease >= 100*time.Millisecond, "relay.lease", "is %v, the least is 100ms", r.Lease)
	k.that(len(r.Name) <= 200, "relay.name", "has %d bytes, the most is 200", len(r.Name))
	k.that(r.Heartbeat > 0, "relay.heartbeat", "must be longer than 0")
	k.that(r.Heartbeat <= r.Lease/3, "relay.heartbeat", "is %v, which is more than a third of relay.lease (%v)", r.Heartbeat, r.Lease)
	atLeast(k, "relay.page", r.Page, 1)
	k.that(r.Page <= 100_000, "relay.page", "is %d, the most is 100000", r.Page)
	atLeast(k, "relay.page_bytes", r.PageBytes, 1)
	k.that(r.PollMin > 0, "relay.poll_min", "must be longer than 0")
	k.that(r.PollMin <= r.PollMax, "relay.poll_max", "is %v, which is less than relay.poll_min (%v)", r.PollMax, r.PollMin)
	k.oneOf("relay.on_unsafe", r.OnUnsafe, relay.OnUnsafeWarn, relay.OnUnsafeRefuse, relay.OnUnsafeIgnore)
	k.oneOf("relay.wakeup", r.Wakeup, "auto", "off")
	k.that(r.ShutdownGrace > 0, "relay.shutdown_grace", "must be longer than 0")
}

func (k *checker) sinks() {
	enabled := 0
	for i, s := range k.c.Sinks {
		twice := slices.IndexFunc(k.c.Sinks[:i], func(other Sink) bool { return other.Name == s.Name })
		k.that(twice < 0 || s.Name == "", "sinks["+strconv.Itoa(i)+"].name", "%q is the name of sinks[%d] already", s.Name, twice)
		if s.Enabled {
			enabled++
		}
	}
	k.that(enabled > 0 || len(k.c.Sinks) == 0 || k.need < NeedRelay, "sinks", "none is enabled: nothing would be published")
}

func (k *checker) patterns(path string, patterns Words) {
	for _, p := range patterns {
		if err := outbox.Pattern(p).Validate(); err != nil {
			k.that(false, path, "%q: %s", p, err.(*outbox.Error).Detail) //nolint:errorlint,forcetypeassert // Validate returns nothing else
		}
	}
}

func (k *checker) sink(path string, s *Sink) {
	k.that(s.Name != "" || k.need < NeedRelay, path+".name", "is missing")
	k.that(s.Name == "" || sinkName.MatchString(s.Name), path+".name", "%q is not a name: use 1 to 64 of a-z, 0-9, _ and -", s.Name)
	k.that(s.URL != "" || k.need < NeedRelay || !s.Enabled, path+".url", "is missing")
	k.patterns(path+".topics", s.Topics)
	k.patterns(path+".exclude", s.Exclude)
	_, err := s.Begin()
	k.that(err == nil, path+".start", "%q is not one of earliest, latest, or a time like 2026-01-31T00:00:00Z", s.Start)
	if s.URL != "" {
		urls := []string{s.URL}
		if s.Scheme() == "nats" || s.IsRabbitMQ() {
			urls = strings.Split(s.URL, ",")
		}
		for _, one := range urls {
			k.url(path+".url", strings.TrimSpace(one), SinkSchemes)
		}
	}
	k.that(s.NATS.Stream != "" || s.Scheme() != "nats" || k.need < NeedRelay, path+".nats.stream", "is missing: name the stream that takes the messages")
	for name, address := range map[string]string{".nats.monitor_url": s.NATS.MonitorURL, ".rabbitmq.management_url": s.RabbitMQ.ManagementURL} {
		if address != "" {
			k.url(path+name, address, []string{"http", "https"})
		}
	}
	k.tls(path, s)
	k.kafka(path, s)
	k.rabbitMQ(path, s)
	k.redis(path, s)
	k.serviceBus(path, s)
	k.oneOf(path+".no_duplicates", s.NoDuplicates, "off", "compare", noDuplicatesTransactions)
	k.that(s.NoDuplicates != noDuplicatesTransactions || s.Scheme() == "kafka" || s.URL == "", path+".no_duplicates", "%q is for kafka: %s.url is another broker's", s.NoDuplicates, path)
	k.that(s.NoDuplicates != "compare" || s.Scheme() == "nats" || s.URL == "", path+".no_duplicates", "%q is for nats: %s.url is another broker's", s.NoDuplicates, path)
	k.wire(path, s)
	k.webhook(path+".webhook", &s.Webhook)
	k.that(s.JSONL.RotateBytes == 0 || s.JSONL.RotateBytes >= 1024, path+".jsonl.rotate_bytes", "is %v, the least is 1KiB; 0: never", s.JSONL.RotateBytes)
	atLeast(k, path+".window.messages", s.Window.Messages, 1)
	atLeast(k, path+".window.bytes", s.Window.Bytes, 1)
	k.that(s.Settle.Every > 0, path+".settle.every", "must be longer than 0")
	atLeast(k, path+".settle.count", s.Settle.Count, 1)
	k.that(s.PublishTimeout > 0, path+".publish_timeout", "must be longer than 0")
	k.oneOf(path+".retry.kind", s.Retry.Kind, "exponential", "fixed")
	k.that(s.Retry.First > 0, path+".retry.first", "must be longer than 0")
	k.that(s.Retry.First <= s.Retry.Max, path+".retry.max", "is %v, which is less than %s.retry.first (%v)", s.Retry.Max, path, s.Retry.First)
	atLeast(k, path+".retry.attempts", s.Retry.Attempts, 0)
	atLeast(k, path+".breaker.failures", s.Breaker.Failures, 1)
	k.that(s.Breaker.First > 0, path+".breaker.first", "must be longer than 0")
	k.that(s.Breaker.First <= s.Breaker.Max, path+".breaker.max", "is %v, which is less than %s.breaker.first (%v)", s.Breaker.Max, path, s.Breaker.First)
	k.oneOf(path+".on_dead", s.OnDead, "block", "skip")
}

func (k *checker) rabbitMQ(path string, s *Sink) {
	err := rabbitmq.CheckExchange(s.RabbitMQ.Exchange)
	k.that(err == nil, path+".rabbitmq.exchange", "%v", err)
	k.that(s.RabbitMQ.Exchange == "" || s.IsRabbitMQ() || s.URL == "", path+".rabbitmq.exchange", "is for amqp: %s.url is another broker's", path)
	atLeast(k, path+".rabbitmq.channels", s.RabbitMQ.Channels, 1)
	k.that(s.RabbitMQ.Channels <= 100, path+".rabbitmq.channels", "is %d, the most is 100", s.RabbitMQ.Channels)
}

func (k *checker) topic(path string, t *Topic) {
	if t.Match == "" {
		k.that(false, path+".match", "is missing")
	} else if err := outbox.Pattern(t.Match).Validate(); err != nil {
		k.that(false, path+".match", "%s", err.(*outbox.Error).Detail) //nolint:errorlint,forcetypeassert // Validate returns nothing else
	}
	if t.OnDead != "" {
		k.oneOf(path+".on_dead", t.OnDead, "block", "skip")
	}
	atLeast(k, path+".max_payload", t.MaxPayload, 1)
	k.that(t.MaxPayload <= outbox.MaxPayload, path+".max_payload", "is %v, the most is %v", t.MaxPayload, ByteSize(outbox.MaxPayload))
}

// url refuses schemes that this program does not know, without repeating what may be a secret.
func (k *checker) url(path, text string, schemes []string) {
	known := "the known ones are " + strings.Join(schemes, ", ")
	if len(schemes) == 1 {
		known = "the known one is " + schemes[0]
	}
	scheme, _, ok := strings.Cut(text, ":")
	k.that(ok, path, "is not a URL: write scheme://host; %s", known)
	k.that(slices.Contains(schemes, scheme), path, "unknown URL scheme %.20q; %s", scheme, known)
	switch scheme {
	case "jsonl":
		_, err := jsonl.ParseURL(text)
		k.that(err == nil, path, "%v", err)
		return
	case "http", "https":
		err := webhook.CheckURL(text)
		k.that(err == nil, path, "%v", err)
		return
	case "servicebus": // with its block
		return
	case "discard":
		err := discard.CheckURL(text)
		k.that(err == nil, path, "%v", err)
		return
	}
	if scheme == "kafka" {
		_, err := kafka.ParseURL(text)
		k.that(err == nil, path, "%v", err)
		return
	}
	if scheme == "redis" || scheme == "rediss" {
		err := redis.CheckURL(text)
		k.that(err == nil, path, "%v", err)
		return
	}
	if scheme == "amqp" || scheme == "amqps" {
		err := rabbitmq.CheckURL(text)
		k.that(err == nil, path, "%v", err)
		return
	}
	if scheme == "sqlite" {
		k.that(len(text) > len("sqlite:"), path, "names no file: write sqlite:/var/lib/shop/orders.db")
		return
	}
	u, err := url.Parse(text)
	k.that(err == nil, path, "is not a URL that can be read: are special characters in the password written as %%40 and the like?")
	k.that(err != nil || u.Host != "", path, "names no host: write %s://host", scheme)
}
