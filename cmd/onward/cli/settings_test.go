package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// others are values of the settings that are not the defaults. A new setting needs its line here; where what it sets is seen by
// a test alone, the test's name with "=" before it.
var others = map[string]string{
	"database.url":                         "postgres://u@other:5433/y",
	"database.schema":                      "=TestRelayPublishesUntilItIsStopped",
	"database.listen_url":                  "=TestRelayHearsByTheListenURL",
	"database.table_prefix":                "=TestRelayPublishesUntilItIsStopped",
	"database.auto_migrate":                "=TestRelayMigratesWhereItIsTold",
	"database.max_connections":             "5",
	"database.statement_timeout":           "7s",
	"relay.name":                           "seven",
	"relay.lease":                          "70s",
	"relay.heartbeat":                      "2s",
	"relay.page":                           "77",
	"relay.page_bytes":                     "7MiB",
	"relay.poll_min":                       "7ms",
	"relay.poll_max":                       "700ms",
	"relay.wakeup":                         "off",
	"relay.shutdown_grace":                 "7s",
	"relay.on_unsafe":                      "refuse",
	"sinks[].name":                         "seven",
	"sinks[].url":                          "=TestRelayPublishesUntilItIsStopped",
	"sinks[].tls.ca_file":                  "=TestASinkTrustsWhomItsSettingsName",
	"sinks[].tls.cert_file":                "=TestASinkTrustsWhomItsSettingsName",
	"sinks[].tls.key_file":                 "=TestASinkTrustsWhomItsSettingsName",
	"sinks[].nats.stream":                  "SEVEN",
	"sinks[].nats.monitor_url":             "http://seven:8222",
	"sinks[].kafka.compression":            "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.tombstone":              "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.create_topics":          "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.sasl":                   "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.token_file":             "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.tls":                    "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.transactional_id":       "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.progress_topic":         "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].kafka.transaction_timeout":    "=TestKafkaIsReachedAsItsSettingsSay",
	"sinks[].rabbitmq.exchange":            "=TestRelayPublishesToRabbitMQ",
	"sinks[].rabbitmq.channels":            "7",
	"sinks[].redis.max_len":                "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].redis.max_age":                "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].redis.exact_trim":             "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].redis.fence":                  "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].redis.fence_for":              "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].redis.wait_aof":               "=TestRedisIsReachedAsItsSettingsSay",
	"sinks[].servicebus.connection_string": "=TestServiceBusIsReachedAsItsSettingsSay",
	"sinks[].servicebus.schedule_header":   "=TestServiceBusIsReachedAsItsSettingsSay",
	"sinks[].jsonl.sync":                   "=TestTheSchemeOfASinkSaysWhatItIs",
	"sinks[].jsonl.rotate_bytes":           "=TestTheSchemeOfASinkSaysWhatItIs",
	"sinks[].topics":                       "seven.>",
	"sinks[].exclude":                      "seven",
	"sinks[].start":                        "latest",
	"sinks[].enabled":                      "false",
	"sinks[].format":                       "=TestTheFormatOfASinkReachesItsConsumers",
	"sinks[].source":                       "=TestTheFormatOfASinkReachesItsConsumers",
	"sinks[].wire_fields":                  "scope",
	"sinks[].topic_template":               "seven.{{.Topic}}",
	"sinks[].key_template":                 "=TestTheFormatOfASinkReachesItsConsumers",
	"sinks[].routing_key_template":         "=TestTheFormatOfASinkReachesItsConsumers",
	"sinks[].no_duplicates":                "compare",
	"sinks[].window.messages":              "77",
	"sinks[].window.bytes":                 "7MiB",
	"sinks[].settle.every":                 "7ms",
	"sinks[].settle.count":                 "77",
	"sinks[].publish_timeout":              "7s",
	"sinks[].retry.kind":                   "fixed",
	"sinks[].retry.first":                  "7s",
	"sinks[].retry.max":                    "7m",
	"sinks[].retry.attempts":               "7",
	"sinks[].breaker.failures":             "7",
	"sinks[].breaker.first":                "7s",
	"sinks[].breaker.max":                  "70s",
	"sinks[].record_positions":             "true",
	"sinks[].on_dead":                      "skip",
	"topics[].match":                       "seven",
	"topics[].require_key":                 "true",
	"topics[].on_dead":                     "skip",
	"topics[].max_payload":                 "7KiB",
	"retention.published":                  "0",
	"retention.dead":                       "7d",
	"telemetry.log.level":                  "error",
	"telemetry.log.format":                 "text",

	"sinks[].dead_topic":             "dead.{{.Topic}}",
	"sinks[].webhook.secrets":        "=TestARelayPostsToAnEndpoint",
	"sinks[].webhook.authorization":  "=TestARelayPostsToAnEndpoint",
	"sinks[].webhook.concurrency":    "=TestARelayPostsToAnEndpoint",
	"sinks[].webhook.allow_networks": "=TestARelayPostsToAnEndpoint",

	"sinks[].rabbitmq.management_url": "http://seven:15672",

	"database.prepared_statements": "false",
	"database.publish_when":        "=TestPublishWhenReachesTheStore",
}

// reached is what a configuration comes to, in words: the relay's, the publisher's, the pool's, and what a log line is like.
func reached(t *testing.T, set ...string) string {
	t.Helper()
	c, err := config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{
		"database.url=postgres://u@here:5432/x", "sinks[1].name=t", "sinks[1].url=nats://there", "sinks[1].nats.stream=T", "sinks[0].name=s", "sinks[0].url=nats://here", "sinks[0].nats.stream=S", "topics[0].match=t",
	}, set...)})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := poolConfig(c.Database)
	if err != nil {
		t.Fatal(err)
	}
	var line bytes.Buffer
	newLogger(&line, false, false, c.Telemetry.Log).LogAttrs(context.Background(), slog.LevelInfo, "said")
	said := "nothing"
	if line.Len() > 0 {
		said = line.String()[:5]
	}
	return fmt.Sprintf("%+v\n%+v\n%+v\n%s %d %v %v\n%s", relayConfig(c), natsConfig(c.Sinks[0]), rabbitConfig(c.Sinks[0]), pool.ConnString(), pool.MaxConns, pool.ConnConfig.RuntimeParams,
		pool.ConnConfig.DefaultQueryExecMode, said)
}

// What a setting says reaches what it is for; what that changes is shown where it is used (relay:
// TestEachSettingChangesWhatTheRelayDoes).
func TestEachSettingReachesWhatItSets(t *testing.T) {
	t.Parallel()
	before := reached(t)
	for _, s := range config.Settings() {
		value := others[s.Path]
		switch {
		case value == "":
			t.Errorf("%s has no line here", s.Path)
		case value[0] == '=':
		case reached(t, strings.ReplaceAll(s.Path, "[]", "[0]")+"="+value) == before:
			t.Errorf("%s=%s changes nothing", s.Path, value)
		}
		delete(others, s.Path)
	}
	for path := range others {
		t.Errorf("%s is no setting", path)
	}
}
