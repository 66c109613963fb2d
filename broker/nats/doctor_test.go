package nats

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// examine asks the server for what the publisher's stream is worth to a relay that asks this.
func examine(t *testing.T, p *Publisher, q doctor.Question) doctor.Diagnosis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := p.Examine(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Severity == 0 || f.Read == "" || f.Check == "" || f.Severity > doctor.OK && f.Means == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return d
}

// wantFinding compares a check's finding: its severity, a part of what was read and of the fix.
func wantFinding(t *testing.T, when string, d doctor.Diagnosis, check string, s doctor.Severity, read, fix string) {
	t.Helper()
	for _, f := range d.Findings {
		if f.Check != check {
			continue
		}
		if f.Severity != s || !strings.Contains(f.Read, read) || !strings.Contains(f.Fix, fix) {
			t.Errorf("%s: %s is %v, %q, fix %q; want %v, %q, fix %q", when, check, f.Severity, f.Read, f.Fix, s, read, fix)
		}
		return
	}
	t.Errorf("%s: nothing was found of %s: %+v", when, check, d.Findings)
}

// Each setting of a stream that can lose what was acknowledged changes the verdict when it is changed on the server, and back.
func TestTheVerdictOfAStreamGoesByItsSettings(t *testing.T) {
	t.Parallel()
	port := freePort()
	server := newServer(t, fmt.Sprintf("http: \"127.0.0.1:%d\"\nmax_payload: 2MB", port))
	b := newBench(t, server.url(), func(c *jetstream.StreamConfig) { c.Storage = jetstream.FileStorage })
	p := b.publisher(Config{MonitorURL: fmt.Sprintf("http://127.0.0.1:%d", port)})
	question := doctor.Question{Retry: time.Minute, Samples: []*outbox.Record{{Message: outbox.Message{Topic: b.topic, Type: "x"}}}}
	d := examine(t, p, question)
	for _, check := range []string{"jetstream-ack", "jetstream-subjects", "jetstream-max-payload", "jetstream-storage", "jetstream-discard", "jetstream-interest", "jetstream-duplicates", "clock-skew"} {
		wantFinding(t, "as it should be", d, check, doctor.OK, "", "")
	}
	wantFinding(t, "on one server", d, "jetstream-replicas", doctor.Warning, "num_replicas = 1", "nats stream edit "+b.stream+" --replicas 3")
	wantFinding(t, "as servers are", d, "jetstream-sync", doctor.Unsafe, "sync_interval = 2m0s", "sync_interval: always")
	if d.Verdict() != doctor.Unsafe || !strings.HasSuffix(d.Worth, "loses up to the last 2m0s") || !strings.HasPrefix(d.Server, "NATS 2.") {
		t.Errorf("the verdict is %v, %q of %q", d.Verdict(), d.Worth, d.Server)
	}
	edit := func(change func(*jetstream.StreamConfig)) {
		t.Helper()
		c := b.config
		change(&c)
		if _, err := b.js.UpdateStream(b.context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		check     string
		change    func(*jetstream.StreamConfig)
		question  doctor.Question
		severity  doctor.Severity
		read, fix string
	}{
		{"jetstream-discard", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld }, question, doctor.Unsafe, "discard = old, max_bytes = 1048576", "nats stream edit " + b.stream + " --discard new"},
		{"jetstream-discard", func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardNew }, question, doctor.OK, "discard = new", ""},
		{"jetstream-discard", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 10, jetstream.DiscardOld }, question, doctor.Unsafe, "discard = old, max_msgs = 10", "--discard new"},
		{"jetstream-per-subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, question, doctor.Warning, "max_msgs_per_subject = 5", "--max-msgs-per-subject=-1"},
		{"jetstream-max-age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, question, doctor.Note, "max_age = 1h", "--max-age=-1"},
		{"jetstream-ack", func(c *jetstream.StreamConfig) { c.NoAck = true }, question, doctor.Unsafe, "no_ack = true", "--ack"},
		{"jetstream-duplicates", func(c *jetstream.StreamConfig) { c.Duplicates = time.Second }, question, doctor.Warning, "duplicate_window = 1s", "--dupe-window=1m0s"},
		{"jetstream-duplicates", func(*jetstream.StreamConfig) {}, doctor.Question{Retry: 10 * time.Minute}, doctor.Warning, "duplicate_window = 2m0s", "--dupe-window=10m0s"},
		{"jetstream-max-payload", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100_000 }, question, doctor.Note, "max_msg_size", "raise max_payload"},
		{"jetstream-max-payload", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100_000 }, doctor.Question{MaxPayload: 200_000}, doctor.Warning, "max_msg_size", "topics[].max_payload"},
		{"jetstream-subjects", func(*jetstream.StreamConfig) {}, doctor.Question{Samples: []*outbox.Record{{Message: outbox.Message{Topic: "nobodys." + b.stream, Type: "x"}}}}, doctor.Warning, "not nobodys.", "--subjects '"},
	} {
		edit(c.change)
		if err := p.Check(t.Context()); err != nil && c.check != "jetstream-ack" { // what capabilities are told by
			t.Fatal(err)
		}
		wantFinding(t, "changed", examine(t, p, c.question), c.check, c.severity, c.read, c.fix)
		edit(func(*jetstream.StreamConfig) {})
	}
	wantFinding(t, "compared", examine(t, b.publisher(Config{Compare: true}), doctor.Question{Retry: time.Hour}), "jetstream-duplicates", doctor.OK, "compare", "")

	edit(func(c *jetstream.StreamConfig) { c.Sealed = true })
	wantFinding(t, "sealed", examine(t, p, question), "jetstream-ack", doctor.Unsafe, "sealed = true", "another stream")
	b.deleteStream()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if d, err := p.Examine(ctx, question); outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(outbox.Hint(err), "nats stream add "+b.stream) {
		t.Errorf("without a stream: %+v, %v", d, err)
	}
}

// An interest stream drops what no consumer waits for: the consumer is what makes its acknowledgement worth something.
func TestAnInterestStreamIsWorthItsConsumers(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })
	p := b.publisher(Config{})
	d := examine(t, p, doctor.Question{})
	wantFinding(t, "without consumers", d, "jetstream-interest", doctor.Unsafe, "consumers: 0", "nats consumer add "+b.stream)
	wantFinding(t, "in memory", d, "jetstream-storage", doctor.Unsafe, "storage = memory", "--storage file")
	if d.Verdict() != doctor.Unsafe || !strings.HasPrefix(d.Worth, "nothing") {
		t.Errorf("the verdict is %v, %q", d.Verdict(), d.Worth)
	}
	if _, err := b.js.CreateConsumer(b.context(), b.stream, jetstream.ConsumerConfig{Durable: "reader"}); err != nil {
		t.Fatal(err)
	}
	d = examine(t, p, doctor.Question{})
	wantFinding(t, "with a consumer", d, "jetstream-interest", doctor.OK, "consumers: 1", "")
	if !strings.Contains(d.Worth, "in the memory of one server") {
		t.Errorf("with a consumer it is worth %q", d.Worth)
	}
}

// How often a server writes to its disk stands in its monitoring alone: without it the doctor says that it does not know.
func TestWhatOnlyTheMonitoringSaysIsUnknownWithoutIt(t *testing.T) {
	t.Parallel()
	port := freePort()
	server := newServer(t, "")
	server.stop()
	server.extra = fmt.Sprintf("http: \"127.0.0.1:%d\"\njetstream { store_dir: %q, sync_interval: always }", port, server.dir+"/data")
	server.start()
	b := newBench(t, server.url(), func(c *jetstream.StreamConfig) { c.Storage = jetstream.FileStorage })
	d := examine(t, b.publisher(Config{}), doctor.Question{})
	wantFinding(t, "without its address", d, "jetstream-sync", doctor.Unknown, "was not read", "nats.monitor_url")
	if !strings.Contains(d.Worth, "was not to be read") {
		t.Errorf("it is worth %q", d.Worth)
	}
	d = examine(t, b.publisher(Config{MonitorURL: fmt.Sprintf("http://127.0.0.1:%d", freePort())}), doctor.Question{})
	wantFinding(t, "where nobody answers", d, "jetstream-sync", doctor.Unknown, "does not answer", "correct nats.monitor_url")
	d = examine(t, b.publisher(Config{MonitorURL: fmt.Sprintf("http://127.0.0.1:%d/", port)}), doctor.Question{})
	wantFinding(t, "with it", d, "jetstream-sync", doctor.OK, "sync_interval = always", "")
	if !strings.Contains(d.Worth, "on the disk of one server") {
		t.Errorf("it is worth %q", d.Worth)
	}
}

// On a cluster an acknowledgement is worth the servers that are left, and one that is away is named.
func TestReplicasAreWhatTheLossOfAServerLosesOrNot(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	b := newBench(t, servers[0].url()+","+servers[1].url()+","+servers[2].url(), func(c *jetstream.StreamConfig) { c.Replicas, c.Storage = 3, jetstream.FileStorage })
	leader, followers := b.leader(servers)
	at := *b
	at.url = leader.url()
	p := at.publisher(Config{})
	until(t, "every replica is current", func() bool {
		d := examine(t, p, doctor.Question{})
		return !d.Has("jetstream-replicas-current", doctor.Warning)
	})
	d := examine(t, p, doctor.Question{})
	wantFinding(t, "of three", d, "jetstream-replicas", doctor.OK, "num_replicas = 3", "")
	if !strings.Contains(d.Worth, "2 of 3 servers: it survives the loss of 1") {
		t.Errorf("it is worth %q", d.Worth)
	}
	wantFinding(t, "of three", d, "jetstream-storage", doctor.OK, "storage = file", "")
	port := freePort()
	newServer(t, fmt.Sprintf("http: \"127.0.0.1:%d\"", port)) // whose sync_interval is as everywhere
	d = examine(t, at.publisher(Config{MonitorURL: fmt.Sprintf("http://127.0.0.1:%d", port)}), doctor.Question{})
	wantFinding(t, "of three", d, "jetstream-sync", doctor.Note, "sync_interval = 2m0s", "sync_interval: always")
	memory := newBench(t, leader.url(), func(c *jetstream.StreamConfig) { c.Replicas = 3 })
	d = examine(t, memory.publisher(Config{}), doctor.Question{})
	wantFinding(t, "of three in memory", d, "jetstream-storage", doctor.Warning, "storage = memory", "--storage file")
	if !strings.Contains(d.Worth, "in the memory of 2 of 3 servers") {
		t.Errorf("in memory it is worth %q", d.Worth)
	}
	followers[0].kill()
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken) // which the one that is gone has not
	until(t, "the loss of one is noticed", func() bool {
		d := examine(t, p, doctor.Question{})
		return d.Has("jetstream-replicas-current", doctor.Warning)
	})
}

// A server that is not there is an error that says so, and no verdict.
func TestAServerThatIsNotThereIsNotExamined(t *testing.T) {
	t.Parallel()
	p, err := Dial(fmt.Sprintf("nats://127.0.0.1:%d", freePort()), Options{}, Config{Stream: "ORDERS"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.Background()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if d, err := p.Examine(ctx, doctor.Question{}); outbox.CodeOf(err) != broker.CodeUnavailable {
		t.Errorf("got %+v, %v", d, err)
	}
}
