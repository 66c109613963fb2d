package kafka

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/doctor"
	"github.com/onwardhq/onward/outbox"
)

// examine asks the cluster what an acknowledgement for messages of these topics is worth.
func examine(t *testing.T, p *Publisher, q doctor.Question, topics ...string) doctor.Diagnosis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	for _, topic := range topics {
		q.Samples = append(q.Samples, &outbox.Record{Message: outbox.Message{Topic: topic, Type: "x"}})
	}
	d, err := p.Examine(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		if f.Severity == 0 || f.Read == "" || f.Check == "" || f.Severity > doctor.OK && (f.Means == "" || f.Fix == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
	return d
}

// found is a check's finding.
func found(d doctor.Diagnosis, check string) doctor.Finding {
	for _, f := range d.Findings {
		if f.Check == check {
			return f
		}
	}
	return doctor.Finding{}
}

// wantFinding compares a check's finding: its severity, a part of what was read and of the fix.
func wantFinding(t *testing.T, when string, d doctor.Diagnosis, check string, s doctor.Severity, read, fix string) {
	t.Helper()
	if f := found(d, check); f.Severity != s || !strings.Contains(f.Read, read) || !strings.Contains(f.Fix, fix) {
		t.Errorf("%s: %s is %v, %q, fix %q; want %v, %q, fix %q", when, check, f.Severity, f.Read, f.Fix, s, read, fix)
	}
}

// Each setting of a topic that can lose what was acknowledged changes the verdict when it is changed on the cluster, and back.
func TestTheVerdictOfATopicGoesByItsSettings(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	b := c.bench(t, []int32{1, 2}, "min.insync.replicas=2")
	p := b.publisher(Config{})
	var d doctor.Diagnosis
	until(t, "both replicas are in sync", func() bool {
		d = examine(t, p, doctor.Question{}, b.topic)
		return found(d, "kafka-in-sync").Severity == doctor.OK
	})
	wantFinding(t, "of two", d, "kafka-min-insync-replicas", doctor.Note, "min.insync.replicas = 2, of 2", "")
	wantFinding(t, "of two", d, "kafka-replication-factor", doctor.OK, "replication factor = 2", "")
	wantFinding(t, "as topics are", d, "kafka-max-message-bytes", doctor.Note, "max.message.bytes = 1048588", "max.message.bytes=")
	wantFinding(t, "as topics are", d, "kafka-retention", doctor.Note, "retention.ms = 604800000", "")
	if d.Verdict() != doctor.Note || !strings.Contains(d.Worth, "2 of 2 brokers at least: it survives the loss of 1") || d.Server != "Kafka, 2 brokers" {
		t.Errorf("the verdict is %v, %q of %q", d.Verdict(), d.Worth, d.Server)
	}
	for _, change := range []struct {
		setting, value, usual, check string
		question                     doctor.Question
		severity                     doctor.Severity
		read, fix, worth             string
	}{
		{"min.insync.replicas", "1", "2", "kafka-min-insync-replicas", doctor.Question{}, doctor.Unsafe, "min.insync.replicas = 1, of 2", "--entity-name " + b.topic + " --add-config min.insync.replicas=2", "the loss of the leader may lose it"},
		{"min.insync.replicas", "3", "2", "kafka-min-insync-replicas", doctor.Question{}, doctor.Note, "min.insync.replicas = 3, of 2", "", "2 of 2 brokers"},
		{"unclean.leader.election.enable", "true", "false", "kafka-unclean-leader-election", doctor.Question{}, doctor.Unsafe, "= true", "unclean.leader.election.enable=false", "a replica that lags may become the leader"},
		{"max.message.bytes", "2097152", "1048588", "kafka-max-message-bytes", doctor.Question{}, doctor.OK, "max.message.bytes = 2097152", "", ""},
		{"max.message.bytes", "50000", "1048588", "kafka-max-message-bytes", doctor.Question{MaxPayload: 60_000}, doctor.Warning, "max.message.bytes = 50000", "max.message.bytes=", ""},
		{"cleanup.policy", "compact", "delete", "kafka-cleanup-policy", doctor.Question{}, doctor.Warning, "cleanup.policy = compact", "cleanup.policy=delete", ""},
		{"retention.bytes", "1000000", "-1", "kafka-retention", doctor.Question{}, doctor.Warning, "retention.bytes = 1000000", "retention.bytes=-1", ""},
		{"retention.ms", "-1", "604800000", "kafka-retention", doctor.Question{}, doctor.OK, "retention.ms = -1", "", ""},
		{"flush.messages", "1", "9223372036854775807", "kafka-replication-factor", doctor.Question{}, doctor.OK, "", "", "on the disks of 2 of 2"},
	} {
		when := change.setting + "=" + change.value
		b.set(change.setting, change.value)
		until(t, when, func() bool {
			f := found(examine(t, p, change.question, b.topic), change.check)
			d = examine(t, p, change.question, b.topic)
			return f.Severity == change.severity && strings.Contains(f.Read, change.read) && strings.Contains(d.Worth, change.worth)
		})
		wantFinding(t, when, d, change.check, change.severity, change.read, change.fix)
		b.set(change.setting, change.usual)
	}
	until(t, "all is as it was", func() bool { return examine(t, p, doctor.Question{}, b.topic).Verdict() == doctor.Note })

	c.without2(t, func() {
		until(t, "a replica that is away is noticed", func() bool {
			d = examine(t, p, doctor.Question{}, b.topic)
			return found(d, "kafka-in-sync").Severity == doctor.Warning
		})
		wantFinding(t, "without the second broker", d, "kafka-in-sync", doctor.Warning, "in sync: 1 of 2", "--under-min-isr-partitions")
	})

	c.allow(t, "writes", b.topic, 4) // write
	plain := c.dial(t, Config{}, "plain", "writes")
	until(t, "its user may write", func() bool {
		d = examine(t, plain, doctor.Question{}, b.topic)
		return found(d, "kafka-settings").Severity == doctor.Unknown
	})
	wantFinding(t, "of a user who may only write", d, "kafka-settings", doctor.Unknown, "TOPIC_AUTHORIZATION_FAILED", "--operation DescribeConfigs --topic "+b.topic)
	if !strings.HasPrefix(d.Worth, "not known") {
		t.Errorf("of a user who may only write it is worth %q", d.Worth)
	}
}

// One replica is the memory of one machine, unless each message is flushed; a topic that is not there is said with the command
// that makes it, and no topic at all with the one that names it.
func TestOneReplicaAndMissingTopicsAreFound(t *testing.T) {
	t.Parallel()
	b := newBench(t, commonURL(t), 1)
	p := b.publisher(Config{})
	d := examine(t, p, doctor.Question{}, b.topic, b.topic, "not a topic", b.topic+".missing")
	wantFinding(t, "of one", d, "kafka-replication-factor", doctor.Unsafe, "replication factor = 1", "--replication-factor 3")
	if d.Verdict() != doctor.Unsafe || !strings.Contains(d.Worth, "in the memory of one broker") || d.Server != "Kafka, 1 broker" {
		t.Errorf("the verdict is %v, %q of %q", d.Verdict(), d.Worth, d.Server)
	}
	missing := func(d doctor.Diagnosis, s doctor.Severity, means string) {
		t.Helper()
		for _, f := range d.Findings {
			if f.Where == "topic "+b.topic+".missing" {
				if f.Severity != s || !strings.Contains(f.Means, means) || !strings.Contains(f.Fix, "--bootstrap-server "+seed(t, b.url)+" --create --topic "+b.topic+".missing") {
					t.Errorf("a topic that is missing: %+v", f)
				}
				return
			}
		}
		t.Errorf("nothing is said of the topic that is missing: %+v", d.Findings)
	}
	missing(d, doctor.Warning, "its messages wait")
	missing(examine(t, b.publisher(Config{CreateTopics: true}), doctor.Question{}, b.topic+".missing"), doctor.Note, "the first message makes it")
	b.set("flush.messages", "1")
	until(t, "the setting is there", func() bool {
		d = examine(t, p, doctor.Question{}, b.topic)
		return found(d, "kafka-replication-factor").Severity == doctor.Warning
	})
	if !strings.Contains(d.Worth, "on the disk of one broker") {
		t.Errorf("flushed, it is worth %q", d.Worth)
	}
	wantFinding(t, "without topics", examine(t, p, doctor.Question{}), "kafka-topic", doctor.Unknown, "no topic", "onward doctor --topic NAME")
	wantFinding(t, "by the template", examine(t, b.publisher(Config{Wire: broker.WireConfig{Topic: b.topic[:9] + ".{{.Topic}}"}}), doctor.Question{}, "orders"), "kafka-topic", doctor.OK, "partitions: 1", "")
}

// A cluster that is not there is an error that says so, and no verdict.
func TestAClusterThatIsNotThereIsNotExamined(t *testing.T) {
	t.Parallel()
	p, err := Dial(fmt.Sprintf("kafka://127.0.0.1:%d", freePort()), Options{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeNow(p)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if d, err := p.Examine(ctx, doctor.Question{}); outbox.CodeOf(err) != broker.CodeUnavailable {
		t.Errorf("got %+v, %v", d, err)
	}
}
