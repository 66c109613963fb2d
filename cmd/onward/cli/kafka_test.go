package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/kafka"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// Messages go from PostgreSQL to a topic that is made only once the relay has missed it; then in order per key.
func TestRelayPublishesToKafka(t *testing.T) {
	t.Parallel()
	url := os.Getenv("ONWARD_TEST_KAFKA_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_KAFKA_URL is not set: start the server with: dev/services up kafka && eval "$(dev/services env)"`)
	}
	name := fmt.Sprintf("cli.%d", time.Now().UnixNano())
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.TrimPrefix(url, "kafka://")), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	d := newDatabase(t)
	c := d.console
	c.environ = append(append([]string{}, c.environ...), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL="+url,
		"ONWARD_SINKS__0__TOPIC_TEMPLATE="+name, "ONWARD_SINKS__0__RETRY__FIRST=100ms", "ONWARD_SINKS__0__RETRY__KIND=fixed", "ONWARD_SINKS__0__RETRY__ATTEMPTS=0")
	r := c.start(t, "relay")
	for n := range 5 {
		d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ('orders.paid', 'order-1', 'T', convert_to($1, 'UTF8'))`, fmt.Sprint(n))
	}
	eventually(t, "the message waits for its topic", func() bool {
		return strings.Contains(d.run(t, "keys", "list", "--blocked", "-o", "json").out, "order-1")
	})

	create := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 3, 1
	create.Topics, create.TimeoutMillis = append(create.Topics, topic), 10_000
	if _, err := create.RequestWith(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 5; {
		for _, m := range client.PollFetches(t.Context()).Records() {
			if string(m.Value) != fmt.Sprint(n) || string(m.Key) != "order-1" {
				t.Errorf("message %d is %s of %s", n, m.Value, m.Key)
			}
			n++
		}
	}
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
}

// What the settings below kafka say is what the publisher is made with; what cannot be used is refused, all at once.
func TestKafkaIsReachedAsItsSettingsSay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certificate, key, token := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "token")
	writeCertificates(t, dir)
	write(t, token, "abc\n")
	load := func(set ...string) (config.Sink, error) {
		c, err := config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{"database.url=postgres://u@h/x", "sinks[0].name=s"}, set...)})
		if err != nil {
			return config.Sink{}, err
		}
		return c.Sinks[0], nil
	}
	s, err := load("sinks[0].url=kafka://h:1,h2", "sinks[0].kafka.compression=zstd", "sinks[0].kafka.tombstone=true", "sinks[0].kafka.create_topics=true", "sinks[0].publish_timeout=7s",
		"sinks[0].kafka.sasl=oauthbearer", "sinks[0].kafka.token_file="+token, "sinks[0].kafka.tls=true", "sinks[0].tls.ca_file="+certificate,
		"sinks[0].tls.cert_file="+certificate, "sinks[0].tls.key_file="+key, "sinks[0].key_template={{.Scope}}")
	if err != nil {
		t.Fatal(err)
	}
	got, want := fmt.Sprintf("%+v", kafkaConfig(s)), fmt.Sprintf("%+v", kafka.Config{Compression: "zstd", Tombstone: true, CreateTopics: true, AckTimeout: 7 * time.Second, Wire: broker.WireConfig{Format: "raw", Key: "{{.Scope}}"}})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	in, err := load("sinks[0].url=kafka://h", "sinks[0].no_duplicates=transactions", "sinks[0].kafka.transactional_id=shop", "sinks[0].kafka.progress_topic=seven", "sinks[0].kafka.transaction_timeout=7s")
	if got, want := kafkaConfig(in).Transactions, (kafka.Transactions{ID: "shop", Topic: "seven", Timeout: 7 * time.Second}); err != nil || got != want {
		t.Errorf("transactions are %+v, %v; want %+v", got, err, want)
	}
	trust, _, err := s.TLS.Config()
	o := s.Kafka.Options(trust)
	if err != nil || o.SASL != "oauthbearer" || o.TLS == nil || o.TLS.RootCAs == nil || len(o.TLS.Certificates) != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, now := range []string{"abc", "its next one"} { // who renews the token writes the file
		write(t, token, now+"\n")
		if said, err := o.Token(t.Context()); said != now || err != nil {
			t.Errorf("the token is %q, %v, want %q", said, err, now)
		}
	}
	p, err := openPublisher(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}

	_, err = load("sinks[0].url=kafka://u:topsecret@h", "sinks[0].kafka.compression=zip", "sinks[0].kafka.token_file=none", "sinks[0].tls.ca_file=none", "sinks[0].tls.cert_file=x", "sinks[0].routing_key_template=x")
	for _, fault := range []string{"kafka.compression: \"zip\"", "kafka.sasl: is off", "kafka.token_file: goes with", "tls: goes with https:", "tls.key_file: and cert_file go together", "routing_key_template: is not for kafka"} {
		if err == nil || !strings.Contains(faultsOf(err), fault) || strings.Contains(fmt.Sprint(err, faultsOf(err)), "topsecret") {
			t.Errorf("%v does not tell of %s", faultsOf(err), fault)
		}
	}
	for fault, set := range map[string][]string{
		"no such file":          {"sinks[0].url=kafka://h", "sinks[0].kafka.tls=true", "sinks[0].tls.ca_file=" + dir + "/none"},
		"no certificate":        {"sinks[0].url=kafka://h", "sinks[0].kafka.tls=true", "sinks[0].tls.ca_file=" + token},
		"tls.cert_file":         {"sinks[0].url=kafka://h", "sinks[0].kafka.tls=true", "sinks[0].tls.cert_file=" + token, "sinks[0].tls.key_file=" + key},
		"token_file: open":      {"sinks[0].url=kafka://h", "sinks[0].kafka.sasl=oauthbearer", "sinks[0].kafka.token_file=" + dir + "/none"},
		"needs a user":          {"sinks[0].url=kafka://h", "sinks[0].kafka.sasl=plain"},
		"is for kafka":          {"sinks[0].url=discard:", "sinks[0].kafka.tombstone=true"},
		"a path or query":       {"sinks[0].url=kafka://h/topic"},
		"\"\" is no host":       {"sinks[0].url=kafka://h,"},
		"\"md5\" is not one of": {"sinks[0].url=kafka://h", "sinks[0].kafka.sasl=md5"},
	} {
		if _, err := load(set...); err == nil || !strings.Contains(faultsOf(err), fault) {
			t.Errorf("%v: %v, want %s", set, faultsOf(err), fault)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// faultsOf is what is wrong, line by line.
func faultsOf(err error) string {
	if faults := config.Faults(nil); errors.As(err, &faults) {
		return faults.Error()
	}
	return fmt.Sprint(err)
}
