// Package config reads the program's settings: a YAML file, then the environment, then flags, the later ones winning. It
// refuses what it does not know, says where each fault stands, and says all of them at once.
//
// The struct Config is the one list of settings: a field's key tag is its name in the file, default and note are what the
// documentation says of it. In the environment a setting is ONWARD_ and its path in capitals with "__" between the
// levels (ONWARD_SINKS__0__URL); a secret may also come from a file that the variable with _FILE behind it names.
package config

import (
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
)

// Config is every setting of the program.
type Config struct {
	Database  Database  `key:"database"`
	Relay     Relay     `key:"relay"`
	Sinks     []Sink    `key:"sinks"`
	Topics    []Topic   `key:"topics"`
	Retention Retention `key:"retention"`
	Telemetry Telemetry `key:"telemetry"`

	places map[string]place // of each setting that was made
}

// Database is where the outbox is.
type Database struct {
	URL              string        `key:"url" secret:"true" note:"where the outbox is: postgres://user:password@host:5432/database, or sqlite:/path/file.db"`
	ListenURL        string        `key:"listen_url" secret:"true" note:"a direct way to the same database, to hear that messages were committed, where url goes through a pooler; default: url"`
	Schema           string        `key:"schema" default:"public" note:"schema of the outbox's tables"`
	TablePrefix      string        `key:"table_prefix" default:"outbox_" note:"what their names begin with"`
	AutoMigrate      bool          `key:"auto_migrate" default:"false" note:"create or update the tables when a relay starts"`
	MaxConnections   int           `key:"max_connections" default:"8" note:"connections of this process"`
	StatementTimeout time.Duration `key:"statement_timeout" default:"30s" note:"no statement runs longer; 0: no limit of ours"`

	PreparedStatements bool   `key:"prepared_statements" default:"true" note:"false behind a pooler that does not keep them (PgBouncer before 1.21, in transaction mode); then the role's statement_timeout counts"`
	PublishWhen        string `key:"publish_when" default:"committed" note:"publish what is committed, flushed (on the server's disk), or replicated (on the disks of its synchronous standbys); PostgreSQL"`
}

// Relay is how this process works.
type Relay struct {
	Name          string        `key:"name" note:"unique among live relays; default: host, process id and a random part"`
	Lease         time.Duration `key:"lease" default:"15s" note:"how long a relay may be silent before others take over"`
	Heartbeat     time.Duration `key:"heartbeat" default:"3s" note:"how often it says that it lives; at most a third of the lease"`
	Page          int           `key:"page" default:"2048" note:"most messages of one read"`
	PageBytes     ByteSize      `key:"page_bytes" default:"16MiB" note:"most payload bytes of one read"`
	PollMin       time.Duration `key:"poll_min" default:"2ms" note:"an idle relay looks again after this time"`
	PollMax       time.Duration `key:"poll_max" default:"100ms" note:"and in the end after this time; while writers wake it, once a second"`
	Wakeup        string        `key:"wakeup" default:"auto" note:"auto: writers wake an idle relay, where the database can; off: nobody does, as two-phase commit needs it of all relays"`
	OnUnsafe      string        `key:"on_unsafe" default:"warn" note:"where settings of the database or of a broker can lose what they have taken, as onward doctor finds: warn in the log, refuse to start, or ignore it"`
	ShutdownGrace time.Duration `key:"shutdown_grace" default:"30s" note:"how long a stop waits for what is in flight"`
}

// Sink is a destination.
type Sink struct {
	Name               string        `key:"name" note:"1 to 64 of a-z, 0-9, _ and -; its cursors are kept under this name"`
	URL                string        `key:"url" secret:"true" note:"nats://user:password@host:4222 or amqp(s)://user:password@host:5672/vhost (several with commas), kafka://user:password@host:9092,host:9092, redis(s)://user:password@host:6379/0, servicebus://namespace.servicebus.windows.net, https://host/path (a webhook), jsonl:/path/file.jsonl, jsonl: (standard output), or discard:"`
	TLS                TLS           `key:"tls"`
	NATS               NATS          `key:"nats"`
	Kafka              Kafka         `key:"kafka"`
	RabbitMQ           RabbitMQ      `key:"rabbitmq"`
	Redis              Redis         `key:"redis"`
	JSONL              JSONL         `key:"jsonl"`
	ServiceBus         ServiceBus    `key:"servicebus"`
	Webhook            Webhook       `key:"webhook"`
	Topics             Words         `key:"topics" note:"topics that it takes: words with dots between, * is one word, > at the end the rest; default: every topic"`
	Exclude            Words         `key:"exclude" note:"topics that it does not take all the same"`
	Start              string        `key:"start" default:"earliest" note:"where a new sink begins: earliest, latest, or a time like 2026-01-31T00:00:00Z; used once"`
	Enabled            bool          `key:"enabled" default:"true" note:"false: its place is kept, and nothing is published"`
	Format             string        `key:"format" default:"raw" note:"raw (the payload as it is, the rest in headers), cloudevents-binary (its attributes in headers) or cloudevents-structured (one JSON object)"`
	Source             string        `key:"source" note:"required by CloudEvents: where messages come from, a URI reference such as /shop/orders"`
	WireFields         Words         `key:"wire_fields" note:"what goes out only where it is listed: scope, aggregate_type, aggregate_id, event_id, diagnosis (relay and attempt)"`
	TopicTemplate      string        `key:"topic_template" default:"{{.Topic}}" note:"the broker's topic or subject, from .ID .Topic .Key .Type .ContentType .Scope .CorrelationID .CausationID .AggregateType .AggregateID .EventID and .Headers.NAME; functions lower, upper, replace FROM TO TEXT"`
	KeyTemplate        string        `key:"key_template" default:"{{.Key}}" note:"the broker's key; messages of one key keep their order only where they get one key here"`
	RoutingKeyTemplate string        `key:"routing_key_template" default:"{{.Topic}}" note:"the broker's routing key"`
	NoDuplicates       string        `key:"no_duplicates" default:"off" note:"off; compare: JetStream stores each message once, and the key becomes the subject's last word; transactions: Kafka shows each message once to readers with isolation.level=read_committed"`
	Window             Window        `key:"window"`
	Settle             Settle        `key:"settle"`
	PublishTimeout     time.Duration `key:"publish_timeout" default:"10s" note:"then an answer counts as lost"`
	Retry              Retry         `key:"retry"`
	Breaker            Breaker       `key:"breaker"`
	RecordPositions    bool          `key:"record_positions" default:"false" note:"keep the broker's position of each message"`
	OnDead             string        `key:"on_dead" default:"block" note:"a dead letter holds its key (block) or lets it go on (skip)"`
	DeadTopic          string        `key:"dead_topic" note:"a dead letter is published here as well, with its cause in headers: a template like topic_template, such as dead.{{.Topic}}; default: nowhere"`
}

// NATS is what only JetStream needs.
type NATS struct {
	Stream     string `key:"stream" note:"required by nats: the stream that takes the messages"`
	MonitorURL string `key:"monitor_url" secret:"true" note:"where the server's monitoring answers, http://host:8222: onward doctor reads there how often the server writes to its disk"`
}

// RabbitMQ is what only RabbitMQ needs.
type RabbitMQ struct {
	Exchange string `key:"exchange" note:"the exchange that takes the messages, a name or a template like topic_template; default: the server's default exchange, where the routing key is the name of a queue"`
	Channels int    `key:"channels" default:"4" note:"channels that share the messages; a key has its channel"`

	ManagementURL string `key:"management_url" secret:"true" note:"where the management plugin answers, http://user:password@host:15672 (default user: that of url): onward doctor reads there how queues keep messages"`
}

// JSONL is what only a file of lines needs.
type JSONL struct {
	Sync        bool     `key:"sync" default:"false" note:"a message is taken once its line is on the disk"`
	RotateBytes ByteSize `key:"rotate_bytes" default:"0" note:"a file that is larger is left, and the next one begun; 0: never"`
}

// Window bounds what is published and not yet settled.
type Window struct {
	Messages int      `key:"messages" default:"1000" note:"published and not yet settled: what may come twice after a crash"`
	Bytes    ByteSize `key:"bytes" default:"16MiB" note:"their payloads"`
}

// Settle bounds how long outcomes wait.
type Settle struct {
	Every time.Duration `key:"every" default:"20ms" note:"outcomes are written back at least this often"`
	Count int           `key:"count" default:"1000" note:"and once there are so many"`
}

// Retry is when a message that failed is tried again.
type Retry struct {
	Kind     string        `key:"kind" default:"exponential" note:"exponential (doubling, with full jitter) or fixed"`
	First    time.Duration `key:"first" default:"1s" note:"before the second attempt"`
	Max      time.Duration `key:"max" default:"10m" note:"never longer"`
	Attempts int           `key:"attempts" default:"10" note:"then it is a dead letter; 0: for ever"`
}

// Breaker is when a sink stops because its broker takes nothing.
type Breaker struct {
	Failures int           `key:"failures" default:"5" note:"so many in a row stop the sink"`
	First    time.Duration `key:"first" default:"1s" note:"then one message tries"`
	Max      time.Duration `key:"max" default:"30s" note:"doubling up to this"`
}

// Topic is a rule for the topics that match; the first that matches wins.
type Topic struct {
	Match      string   `key:"match" note:"topics: words with dots between, * is one word, > at the end the rest"`
	RequireKey bool     `key:"require_key" default:"false" note:"a message without a key becomes a dead letter"`
	OnDead     string   `key:"on_dead" note:"block or skip; default: the sink's"`
	MaxPayload ByteSize `key:"max_payload" default:"1MiB" note:"a larger payload becomes a dead letter"`
}

// Retention is what may be removed, once every sink has passed it.
type Retention struct {
	Published time.Duration `key:"published" default:"24h" note:"how long messages stay after they were written, and every sink has passed them; 0: no longer than that"`
	Dead      string        `key:"dead" default:"never" note:"how long dead letters stay: never removed, or at least 1m; then they are discarded, which is audited"`
}

// Expiry is how long dead letters stay; 0: for ever.
func (r *Retention) Expiry() (time.Duration, error) {
	if r.Dead == "never" {
		return 0, nil
	}
	return parseDuration(r.Dead)
}

// Telemetry is what the program says of itself.
type Telemetry struct {
	Log Log `key:"log"`
}

// Log is the program's log, on stderr.
type Log struct {
	Level  string `key:"level" default:"info" note:"debug, info, warn or error"`
	Format string `key:"format" default:"auto" note:"text, json, or auto: text on a terminal, json elsewhere"`
}

// Begin is where a new sink begins, as Start says it.
func (s *Sink) Begin() (start store.Start, err error) {
	switch s.Start {
	case "", "earliest":
	case "latest":
		start.Latest = true
	default:
		start.Since, err = time.Parse(time.RFC3339Nano, s.Start)
	}
	return start, err
}

// Selection is what the sink takes.
func (s *Sink) Selection() outbox.Selection {
	patterns := func(words Words) (all []outbox.Pattern) {
		for _, w := range words {
			all = append(all, outbox.Pattern(w))
		}
		return all
	}
	return outbox.Selection{Topics: patterns(s.Topics), Exclude: patterns(s.Exclude)}
}

// Wire is how messages are written.
func (s *Sink) Wire() broker.WireConfig {
	unlessUsual := func(text, usual string) string {
		if text == usual {
			return ""
		}
		return text
	}
	return broker.WireConfig{
		Format: broker.Format(s.Format), Source: s.Source, Fields: s.WireFields, Topic: unlessUsual(s.TopicTemplate, "{{.Topic}}"),
		Key: unlessUsual(s.KeyTemplate, "{{.Key}}"), RoutingKey: unlessUsual(s.RoutingKeyTemplate, "{{.Topic}}"),
	}
}

// Scheme is what the URL begins with: which broker it is.
func (s *Sink) Scheme() string {
	scheme, _, _ := strings.Cut(s.URL, ":")
	return scheme
}

// IsRabbitMQ reports whether the URL leads to RabbitMQ.
func (s *Sink) IsRabbitMQ() bool { return s.Scheme() == "amqp" || s.Scheme() == "amqps" }
