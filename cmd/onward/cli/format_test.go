package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
	"github.com/onwardhq/onward/store/sqlite"
)

// What a relay publishes is what the sinks' settings say: an event of CloudEvents in one, the fields that are listed in the
// other, the relay's own name among them.
func TestTheFormatOfASinkReachesItsConsumers(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, events, lines := filepath.Join(folder, "orders.db"), filepath.Join(folder, "events.jsonl"), filepath.Join(folder, "lines.jsonl")
	c := console{environ: []string{
		"ONWARD_DATABASE__URL=sqlite:" + file, "ONWARD_DATABASE__AUTO_MIGRATE=true", "ONWARD_RELAY__NAME=relay-seven",
		"ONWARD_SINKS__0__NAME=events", "ONWARD_SINKS__0__URL=jsonl:" + events, "ONWARD_SINKS__0__FORMAT=cloudevents-structured", "ONWARD_SINKS__0__SOURCE=/shop",
		"ONWARD_SINKS__1__NAME=lines", "ONWARD_SINKS__1__URL=jsonl:" + lines, "ONWARD_SINKS__1__WIRE_FIELDS=scope,diagnosis",
	}}
	relay := c.start(t, "relay")
	eventually(t, "the tables are made", func() bool { return c.run(t, "status").code == exitDone })
	db, err := sqlite.OpenDB(t.Context(), file, sqlite.FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO outbox_messages (topic, partition_key, type, payload, content_type, scope) VALUES ('orders', 'k', 'T', '{"a": 1}', 'application/json', 'tenant')`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both sinks have it", func() bool {
		return strings.Count(c.run(t, "status", "-o", "json").out, `"published": 1`) == 2
	})
	if code := relay.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, relay.said())
	}
	var event struct {
		Source, Type, PartitionKey string
		Data                       map[string]int
	}
	var line struct {
		Scope, Relay string
		Attempt      int
	}
	for name, into := range map[string]any{events: &event, lines: &line} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if event.Source != "/shop" || event.Type != "T" || event.PartitionKey != "k" || event.Data["a"] != 1 {
		t.Errorf("the event is %+v", event)
	}
	if line.Scope != "tenant" || line.Relay != "relay-seven" || line.Attempt != 1 {
		t.Errorf("the line has %+v", line)
	}
	loaded, err := config.Load(config.Source{Set: []string{
		"sinks[0].url=discard:", "sinks[0].topic_template=t.{{.Topic}}", "sinks[0].key_template={{.Scope}}", "sinks[0].routing_key_template={{.Type}}",
	}})
	want := broker.WireConfig{Format: broker.FormatRaw, Topic: "t.{{.Topic}}", Key: "{{.Scope}}", RoutingKey: "{{.Type}}"}
	if err != nil || !reflect.DeepEqual(loaded.Sinks[0].Wire(), want) {
		t.Errorf("the templates come to %+v (%v), want %+v", loaded.Sinks[0].Wire(), err, want)
	}
}

func TestFormatsThatASinkHasNoUseForAreRefused(t *testing.T) {
	t.Parallel()
	for what, set := range map[string][]string{
		`sinks[0].format: "avro" is not one of raw`:                         {"sinks[0].format=avro"},
		"sinks[0].source: is missing":                                       {"sinks[0].format=cloudevents-binary"},
		"sinks[0].source: is for the formats":                               {"sinks[0].source=/s"},
		`sinks[0].wire_fields: "payload" is not one of`:                     {"sinks[0].wire_fields=payload"},
		`sinks[0].topic_template: "{{.Nope}}" names .Nope`:                  {"sinks[0].topic_template={{.Nope}}"},
		"sinks[0].key_template: is not for nats: it has topic_template":     {"sinks[0].key_template={{.Scope}}"},
		"sinks[0].routing_key_template: is not for nats":                    {"sinks[0].routing_key_template=x"},
		"sinks[0].topic_template: is not for jsonl: it has no names":        {"sinks[0].url=jsonl:", "sinks[0].topic_template=x"},
		`sinks[0].format: "cloudevents-binary" is not for jsonl`:            {"sinks[0].url=jsonl:", "sinks[0].format=cloudevents-binary", "sinks[0].source=/s"},
		"sinks[0].wire_fields: are not for jsonl with cloudevents-structur": {"sinks[0].url=jsonl:", "sinks[0].format=cloudevents-structured", "sinks[0].source=/s", "sinks[0].wire_fields=scope"},
	} {
		_, err := config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{
			"database.url=sqlite:x", "sinks[0].name=s", "sinks[0].url=nats://h", "sinks[0].nats.stream=S",
		}, set...)})
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: %v, want %s", set, err, what)
		}
	}
}
