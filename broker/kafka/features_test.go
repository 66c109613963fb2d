package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Keys land in the partitions where Kafka's own Java client put them: testdata/Partitions.java, which wrote the file.
func TestKeysLandWhereTheJavaClientPutsThem(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/java-partitions.golden")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(golden), "\n"), "\n")
	if len(lines) != 20 {
		t.Fatalf("%d keys, want 20", len(lines))
	}
	for column, partitions := range []int{1, 3, 7, 12, 100} {
		b := newBench(t, commonURL(t), partitions)
		var batch []broker.Envelope
		for _, line := range lines {
			batch = append(batch, message(b.topic, strings.Split(line, "\t")[0]))
		}
		p := b.publisher(Config{})
		for i, r := range publish(t, t.Context(), p, batch...) {
			words := strings.Split(lines[i], "\t")
			got, _, _ := strings.Cut(r.Position, ":")
			if want := words[column+1]; got != want {
				t.Errorf("key %q of %d partitions: in %s (%v), the Java client puts it in %s", words[0], partitions, got, r.Err, want)
			}
		}
	}
}

// Messages without a key are spread over the partitions.
func TestMessagesWithoutAKeyAreSpread(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 4)
	publish(t, t.Context(), b.publisher(Config{}), messages(8*spread, b.topic)...)
	ends, err := b.ends(b.context())
	if err != nil {
		t.Fatal(err)
	}
	for partition, n := range ends {
		if n != 2*spread {
			t.Errorf("partition %d has %d messages, want %d", partition, n, 2*spread)
		}
	}
}

func TestEachCompressionIsReadByOthers(t *testing.T) {
	t.Parallel()
	for _, word := range Compressions() {
		b := newBench(t, commonURL(t), 1)
		batch := messages(100, b.topic)
		for i := range batch {
			batch[i].Payload = []byte(strings.Repeat("compressible ", 100))
		}
		publish(t, t.Context(), b.publisher(Config{Compression: word}), batch...)
		parts, err := b.records(b.context(), len(batch))
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range parts[0] {
			if string(r.Value) != string(batch[i].Payload) {
				t.Errorf("%s: message %d arrived as %d other bytes", word, i, len(r.Value))
			}
			if codec := Compressions()[r.Attrs.CompressionType()]; codec != word {
				t.Errorf("%s: the batch is compressed with %s", word, codec)
			}
		}
	}
}

// With Tombstone an empty payload deletes its key from a compacted topic; otherwise it is an empty value.
func TestATombstoneIsANullRecord(t *testing.T) {
	t.Parallel()
	for _, tombstone := range []bool{false, true} {
		b := newBench(t, commonURL(t), 1, "cleanup.policy=compact")
		full, empty := message(b.topic, "k"), message(b.topic, "k")
		empty.Payload = nil
		publish(t, t.Context(), b.publisher(Config{Tombstone: tombstone}), full, empty)
		parts, err := b.records(b.context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if got := parts[0][1]; (got.Value == nil) != tombstone || len(got.Value) != 0 || string(got.Key) != "k" {
			t.Errorf("tombstone %v: got key %q, value %v", tombstone, got.Key, got.Value)
		}
		if string(parts[0][0].Value) != "payload" {
			t.Errorf("tombstone %v: a full payload arrived as %q", tombstone, parts[0][0].Value)
		}
	}
}

func TestAMissingTopicIsMadeWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	b := prepareBench(t, commonURL(t))
	t.Cleanup(func() { b.deleteTopic(b.topic) })
	want(t, publish(t, t.Context(), b.publisher(Config{}), message(b.topic, ""))[0], noTopic)
	want(t, publish(t, t.Context(), b.publisher(Config{CreateTopics: true}), message(b.topic, ""))[0], taken)
	ends, err := b.ends(b.context())
	if err != nil || len(ends) != 4 { // the server's num.partitions
		t.Errorf("the topic has %d partitions (%v), want 4", len(ends), err)
	}
}

func TestAClientOfTheCallersOwnStaysOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	p, err := NewPublisher(b.admin, Config{})
	if err != nil {
		t.Fatal(err)
	}
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count(); n != 1 { // asks with the client
		t.Errorf("%d messages, want 1", n)
	}
}

func TestSignInWithEachMechanismAndTLS(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	b := c.bench(t, []int32{1})
	token := func(context.Context) (string, error) { // an unsecured one: the brokers of the test take those
		part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
		now := time.Now().Unix()
		return part(`{"alg":"none"}`) + "." + part(fmt.Sprintf(`{"sub":"oauth","iat":%d,"exp":%d}`, now, now+3600)) + ".", nil
	}
	for mechanism, user := range map[string]string{"plain": "writes", "scram-sha-256": "scram256", "scram-sha-512": "scram512", "oauthbearer": "oauth"} {
		c.allow(t, user, b.topic, 4) // write
		for _, listener := range []string{"sasl1", "tls1"} {
			o := Options{SASL: mechanism}
			url := fmt.Sprintf("kafka://%s:p%%40ss:word@127.0.0.1:%d", user, c.ports[listener])
			if listener == "tls1" {
				o.TLS = c.tls()
			}
			if mechanism == "oauthbearer" {
				o.Token = token
				url = fmt.Sprintf("kafka://127.0.0.1:%d", c.ports[listener])
			}
			p := c.open(t, Config{}, url, o)
			until(t, "the cluster takes "+mechanism+" by "+listener, func() bool { return p.Check(t.Context()) == nil })
			want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
		}
	}
}

// A wrong password, no TLS where it is wanted: the broker is not there for us, and what it said is told. Never without end.
func TestARefusedSignInIsUnavailable(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	b := c.bench(t, []int32{1})
	for name, p := range map[string]*Publisher{
		"wrong password": c.open(t, Config{}, fmt.Sprintf("kafka://writes:wrong@127.0.0.1:%d", c.ports["sasl1"]), Options{SASL: "plain"}),
		"no user":        c.open(t, Config{AckTimeout: 2 * time.Second}, fmt.Sprintf("kafka://127.0.0.1:%d", c.ports["sasl1"]), Options{}),
		"no TLS":         c.open(t, Config{AckTimeout: 2 * time.Second}, fmt.Sprintf("kafka://writes:p%%40ss:word@127.0.0.1:%d", c.ports["tls1"]), Options{SASL: "plain"}),
		"not trusted":    c.open(t, Config{AckTimeout: 2 * time.Second}, fmt.Sprintf("kafka://writes:p%%40ss:word@127.0.0.1:%d", c.ports["tls1"]), Options{SASL: "plain", TLS: c.distrust()}),
	} {
		r := publish(t, t.Context(), p, message(b.topic, ""))[0]
		if r.Outcome != broker.Unavailable {
			t.Errorf("%s: %s: %v", name, r.Outcome, r.Err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := p.Check(ctx)
		cancel()
		if outbox.CodeOf(err) != broker.CodeUnavailable || outbox.Hint(err) == "" {
			t.Errorf("%s: Check: %v", name, err)
		}
		if strings.Contains(err.Error()+r.Err.Error(), "word") && name != "wrong password" {
			t.Errorf("%s: the password is told: %v, %v", name, err, r.Err)
		}
		t.Logf("%s: %v", name, err)
	}
}

func TestFaultsOfTheConfigurationComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Dial("kafka://h", Options{}, Config{AckTimeout: time.Millisecond, MaxPending: -1, Compression: "zip", Wire: broker.WireConfig{RoutingKey: "x", Key: "{{.Nope}}"}})
	for _, word := range []string{"AckTimeout", "MaxPending", "Compression", "routing_key_template", ".Nope"} {
		if !errors.Is(err, outbox.ErrConfigInvalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not tell of %s", err, word)
		}
	}
	for _, o := range []Options{{SASL: "plan"}, {SASL: "plain"}, {SASL: "oauthbearer"}} {
		if _, err := Connect("kafka://h", o); !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Connect("kafka://u:secret@h", Options{}); !errors.Is(err, outbox.ErrConfigInvalid) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a user without SASL: %v", err)
	}
	if _, err := NewPublisher(nil, Config{}); !errors.Is(err, outbox.ErrConfigInvalid) {
		t.Errorf("no client: %v", err)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"kafka://h":                          {Brokers: []string{"h:9092"}},
		"kafka://h:1/":                       {Brokers: []string{"h:1"}},
		"kafka://a:1,b, c:3":                 {Brokers: []string{"a:1", "b:9092", "c:3"}},
		"kafka://[::1]:1,[::2]":              {Brokers: []string{"[::1]:1", "[::2]:9092"}},
		"kafka://u:p%40s%2Fs%3As@h:1":        {Brokers: []string{"h:1"}, User: "u", Password: "p@s/s:s"},
		"kafka://u@example.com:9093,h2:9093": {Brokers: []string{"example.com:9093", "h2:9093"}, User: "u"},
	} {
		got, err := ParseURL(text)
		if err != nil || !slices.Equal(got.Brokers, want.Brokers) || got.User != want.User || got.Password != want.Password {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "h:9092", "kafka://", "kafka://h,", "kafka://h:x", "kafka://h/topic", "kafka://h?x=1", "kafka://u:secret%zz@h", "kafka://u:secret@a:1,v:secret@b:2", "nats://h"} {
		if got, err := ParseURL(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}
